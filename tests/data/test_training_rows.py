"""The training rows of all seen devices: as if the others were not in the table."""

from pathlib import Path

import pytest

from partita.data import training_rows
from partita.data.options import TableOptions
from partita.data.table import DeviceTable
from partita.data.training_rows import training_tables
from partita.data.unseen import is_unseen
from tables import split_of, texts, write


def test_derived_values_come_from_tables_as_if_unseen_devices_were_not_there(tmp_path: Path) -> None:
    # Of d0 to d11, d1, d5, d6, d7 and d11 are unseen; d3 and d6 have no test row and are not selected.
    rows = [
        {**row, "label": place}
        for place, row in enumerate(texts(devices=12, split=split_of))
        if row["device"] not in ("d3", "d6") or row["split"] == "train"
    ]
    unseen = [row for row in rows if is_unseen(row["device"], 0.3)]
    seen = [row for row in rows if row not in unseen]
    options = TableOptions(min_test_examples=1)

    one = DeviceTable(write(tmp_path / "one.parquet", rows), options, ("text", "label"), unseen=0.3)
    other = DeviceTable(write(tmp_path / "other.parquet", seen), options, ("text", "label"))

    assert list(one.seen_ids) == ["d0", "d10", "d2", "d4", "d8", "d9"]
    tables = [[table.to_pylist() for table in training_tables(own, ["text"])] for own in (one, other)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 2


def test_rows_of_unseen_devices_between_seen_ones_do_not_count_as_rows_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 60 devices of 6 rows, 4 of them for training; tables of at most 2 devices, whatever lies between them.
    rows = texts(devices=60, split=split_of)
    seen = [row for row in rows if not is_unseen(row["device"], 0.8)]
    monkeypatch.setattr(training_rows, "_ROWS_AT_A_TIME", 12)
    one = DeviceTable(write(tmp_path / "one.parquet", rows), TableOptions(), ("text",), unseen=0.8)
    other = DeviceTable(write(tmp_path / "other.parquet", seen), TableOptions(), ("text",))
    read, sizes = one.groups.read, []

    def spy(begin: int, end: int, columns: list[str]) -> object:
        sizes.append(end - begin)
        return read(begin, end, columns)

    monkeypatch.setattr(one.groups, "read", spy)
    tables = [[table.to_pylist() for table in training_tables(own, ["text"])] for own in (one, other)]

    assert tables[0] == tables[1]
    assert {len(table) for table in tables[0]} <= {4, 8}
    assert max(sizes) <= 12
    assert sum(sizes) == len(seen)
