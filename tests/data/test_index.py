"""The index of a table: counts, caching, and the selection of devices."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from partita.data.table import DeviceTable
from partita.errors import ConfigError
from tables import open_table, split_of, texts, write


@pytest.mark.parametrize(
    "options", [{}, {"split": "hash"}, {"validation": 0.4}, {"split": "time", "validation": 0.4}]
)
def test_the_counts_of_the_index_match_the_rows_that_are_read(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = texts(devices=4, rows=15, split=split_of, time=lambda device, row: row % 7)
    table = open_table(
        write(tmp_path / "t.parquet", rows), min_test_examples=1, min_train_examples=1, **options
    )

    for device, counts in zip(table.ids, table.index.counts.tolist(), strict=True):
        found = table.rows_of(device)
        assert [len(found.get(split, [])) for split in ("train", "validation", "test")] == counts


def test_devices_with_too_few_rows_are_left_out(tmp_path: Path) -> None:
    rows = [*texts(devices=2, rows=6, split=split_of), {"device": "few", "text": "x", "split": "train"}]
    path = write(tmp_path / "t.parquet", rows)

    assert list(open_table(path, min_test_examples=1).ids) == ["d0", "d1"]
    with pytest.raises(
        ConfigError,
        match="Device 'few' of `.*t.parquet` has no test rows, the first of 1 such devices: `min_test_examples = 1`",
    ):
        open_table(path)
    with pytest.raises(ConfigError, match="No device of .* has at least 5 training rows and 1 test rows"):
        open_table(path, min_test_examples=1, min_train_examples=5)


def test_a_sample_of_devices_is_fixed_and_changes_little_with_more_devices(tmp_path: Path) -> None:
    few = list(open_table(write(tmp_path / "a.parquet", texts(devices=20, split=split_of)), devices=5).ids)
    many = list(open_table(write(tmp_path / "b.parquet", texts(devices=40, split=split_of)), devices=10).ids)

    assert len(few) == 5
    assert few == sorted(few)
    assert len(set(few) & set(many)) >= 2
    with pytest.raises(ConfigError, match="`devices` must be at most 20 for .*a.parquet`, got 21"):
        open_table(tmp_path / "a.parquet", devices=21)


def test_the_index_is_built_once_and_again_when_the_table_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.parquet", texts(split=split_of))
    open_table(path)
    (index,) = tmp_path.glob("*.index")
    built: list[int] = []
    monkeypatch.setattr(DeviceTable, "_batches", counting(built, DeviceTable._batches))

    open_table(path)
    assert not built
    write(path, texts(devices=4, split=split_of))
    assert len(open_table(path).ids) == 4
    assert built == [1]
    index.write_bytes(b"broken")
    assert len(open_table(path).ids) == 4
    assert built == [1, 1]


def test_a_damaged_index_is_not_used(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=40, split=split_of))
    expected = open_table(path).index
    (index,) = tmp_path.glob("*.index")
    content = index.read_bytes()

    for place in range(0, len(content), 29):
        index.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        found = open_table(path).index
        assert found.ids.equals(expected.ids)
        assert (found.starts == expected.starts).all()
        assert (found.counts == expected.counts).all()
        assert (found.held_out == expected.held_out).all()


def counting(calls: list[int], function: Any) -> Any:
    def counted(self: DeviceTable) -> Iterable[Any]:
        calls.append(1)
        return function(self)

    return counted


def test_the_index_is_in_the_cache_folder_if_the_tables_folder_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data/t.parquet", texts(split=split_of))
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.parent == path.parent:
            raise PermissionError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)

    open_table(path)

    assert len(list((tmp_path / "cache/partita").glob("t.parquet.*.index"))) == 1


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        (
            texts(text=lambda device, row: "same"),
            {},
            "rows with the same content are in the same split. Add a column",
        ),
        (texts(rows=1), {}, "each device has one row."),
        (texts(rows=9, group=lambda device, row: 1), {}, "its column `group` decides, and rows"),
        (texts(rows=9), {"test": 0.0}, "`test` is 0."),
        (texts(split=lambda device, row: "train"), {"min_test_examples": 1}, "see its column `split`."),
    ],
)
def test_an_error_explains_why_no_device_has_training_and_test_rows(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], reason: str
) -> None:
    path = write(tmp_path / "t.parquet", rows)

    with pytest.raises(ConfigError) as caught:
        open_table(path, **options)

    assert f"No device of `{path}` has both training and test rows: {reason}" in str(caught.value)
    assert "min_test_examples" not in str(caught.value)
