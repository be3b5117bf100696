"""The split of each row: from a column, by hash and by time."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.data.options import TableOptions
from partita.data.splits import content_keys, fraction_of
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from tables import contents, not_utf8, open_table, split_of, splits_by_text, texts, write


def appended(rows: list[dict[str, Any]], more: int) -> list[dict[str, Any]]:
    """Return the rows with others before, between and after them, for every device."""
    new = [
        {**row, "text": f"{row['text']} new {n}", "id": f"new {row['id']} {n}"}
        for n in range(more)
        for row in rows
    ]
    return sorted([*new, *rows], key=lambda row: (row["device"], row["text"][::-1]))


@pytest.mark.parametrize("drop", [(), ("id",)])
def test_added_rows_never_move_a_row_between_training_and_test(tmp_path: Path, drop: tuple[str, ...]) -> None:
    rows = texts(devices=5, rows=40, id=lambda device, row: f"{device}/{row}")
    more = [{name: value for name, value in row.items() if name not in drop} for row in appended(rows, 3)]
    rows = [{name: value for name, value in row.items() if name not in drop} for row in rows]

    before = splits_by_text(open_table(write(tmp_path / "a.parquet", rows), validation=0.25))
    after = splits_by_text(open_table(write(tmp_path / "b.parquet", more), validation=0.25))

    assert set(before.values()) == {"train", "validation", "test"}
    assert {text for text in before if after[text] == "test"} == {t for t in before if before[t] == "test"}


def test_shares_are_close_to_the_options(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=4, rows=500), group=1000)

    drawn = list(splits_by_text(open_table(path, test=0.3, validation=0.1)).values())

    assert drawn.count("test") / len(drawn) == pytest.approx(0.3, abs=0.03)
    # A tenth of the training rows, which are 70 %.
    assert drawn.count("validation") / len(drawn) == pytest.approx(0.07, abs=0.02)


def test_rows_of_one_group_are_in_one_split(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=4, rows=60, group=lambda device, row: row // 5))

    drawn = splits_by_text(open_table(path))

    by_group: dict[int, set[str]] = {}
    for text, split in drawn.items():
        by_group.setdefault(int(text.split()[2]) // 5, set()).add(split)
    assert all(len(found) == 1 for found in by_group.values())
    assert set().union(*by_group.values()) == {"train", "test"}


def test_by_time_the_newest_rows_are_test_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=10, time=lambda device, row: (row * 7) % 10))

    table = open_table(path, split="time", test=0.25)

    # A quarter of ten, rounded up: the three newest rows have the times 7, 8 and 9.
    assert contents(table)["d1", "test"] == ["text 1 1", "text 1 4", "text 1 7"]
    assert len(contents(table)["d1", "train"]) == 7


def test_validation_rows_come_from_training_rows_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=60, split=split_of))

    without, with_validation = contents(open_table(path)), contents(open_table(path, validation=0.2))

    for device in ("d0", "d1", "d2"):
        assert with_validation[device, "test"] == without[device, "test"]
        assert sorted(with_validation[device, "train"] + with_validation[device, "validation"]) == sorted(
            without[device, "train"]
        )


def test_by_time_validation_rows_are_the_newest_before_test_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=10, time=lambda device, row: row))

    table = open_table(path, split="time", test=0.2, validation=0.25)

    found = contents(table)
    assert found["d0", "test"] == ["text 0 8", "text 0 9"]
    assert found["d0", "validation"] == ["text 0 6", "text 0 7"]
    assert table.index.counts.tolist() == [[6, 2, 2]] * 3


def test_splits_do_not_depend_on_the_columns_that_are_read(tmp_path: Path) -> None:
    rows = texts(devices=3, rows=30, note=lambda device, row: f"n{row}")
    path = write(tmp_path / "t.parquet", rows)

    one, other = (
        DeviceTable(path, TableOptions(min_test_examples=1), columns)
        for columns in (("text",), ("note", "text"))
    )

    assert splits_by_text(one) == splits_by_text(other)


def test_rows_with_values_that_python_cannot_decode_have_a_split(tmp_path: Path) -> None:
    # Python can decode none of these strings and has no date as late as these.
    columns = {
        "device": [f"d{row // 20}" for row in range(40)],
        "text": [f"text {row}" for row in range(40)],
        "note": not_utf8([b"\xff%d" % row for row in range(40)]),
        "late": pa.array([2**55 + row for row in range(40)], pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")

    assert set(splits_by_text(open_table(tmp_path / "t.parquet")).values()) == {"train", "test"}


def test_hash_overrides_a_split_column(tmp_path: Path) -> None:
    rows = texts(rows=40, split=lambda device, row: "train")
    path = write(tmp_path / "t.parquet", rows)
    plain = write(tmp_path / "p.parquet", [{k: v for k, v in row.items() if k != "split"} for row in rows])

    assert contents(open_table(path, split="hash")) == contents(open_table(plain))


def test_an_image_is_hashed_by_its_bytes_and_not_by_its_path() -> None:
    one, other, changed = content_keys(
        [
            {"image": {"bytes": b"x", "path": "a.png"}},
            {"image": {"bytes": b"x", "path": "b.png"}},
            {"image": {"bytes": b"y", "path": "a.png"}},
        ]
    )

    assert one == other != changed
    assert 0 <= fraction_of(one, "test") < 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("split", ["", "hash", "time"])
def test_the_share_of_validation_rows_is_the_nearest_on_each_device(
    tmp_path: Path, share: float, split: str
) -> None:
    rows = [
        {
            "device": f"d{count}",
            "text": f"{count}/{row}",
            "time": row,
            "split": "test" if row == 0 else "train",
        }
        for count in range(2, 30)
        for row in range(count)
    ]
    options = {"split": split, "min_test_examples": 1, "min_train_examples": 1}
    path = write(tmp_path / "t.parquet", rows)

    plain, held_out = open_table(path, **options), open_table(path, validation=share, **options)

    assert list(held_out.ids) == list(plain.ids)
    for device in plain.ids:
        training = len(plain.rows_of(device)["train"])
        counts = {name: len(found) for name, found in held_out.rows_of(device).items()}
        number = counts.get("validation", 0)
        distances = [abs(other - share * training) for other in range(training)]
        assert abs(number - share * training) == min(distances)
        assert counts["train"] == training - number >= 1


def test_whole_groups_are_held_out_as_near_to_the_share_as_possible(tmp_path: Path) -> None:
    # Sixteen training rows in groups of 6, 5, 4 and 1.
    groups = [name for name, size in {"a": 6, "b": 5, "c": 4, "d": 1}.items() for _ in range(size)]
    rows = [{"device": "d", "text": f"{n}", "group": group} for n, group in enumerate(groups)]
    path = write(tmp_path / "t.parquet", [{**row, "split": "train"} for row in rows] + [
        {"device": "d", "text": "t", "group": "t", "split": "test"}
    ])  # fmt: skip

    def held_out(share: float) -> int:
        return len(open_table(path, validation=share).rows_of("d").get("validation", ()))

    # Every number of rows but 2, 3, 8, 13 and 14 is a sum of some groups; of two that are as near, the lower.
    assert [held_out(n / 16) for n in range(1, 16)] == [1, 1, 4, 4, 5, 6, 7, 7, 9, 10, 11, 12, 12, 15, 15]


def test_many_groups_are_held_out_as_near_to_the_share_as_possible(tmp_path: Path) -> None:
    # Pairs of rows: of the 400 training rows a fifth less one is odd, and the even number below is taken.
    rows = [{"device": "d", "text": f"{n}", "group": f"{n // 2}", "split": "train"} for n in range(400)]
    path = write(tmp_path / "t.parquet", [*rows, {**rows[0], "text": "t", "group": "t", "split": "test"}])

    held_out = open_table(path, validation=79 / 400).rows_of("d")["validation"]

    assert len(held_out) == 78


def test_a_device_keeps_validation_rows_of_its_own(tmp_path: Path) -> None:
    rows = texts(devices=2, rows=12, split=split_of)
    rows[0]["split"] = "validation"
    path = write(tmp_path / "t.parquet", rows)

    found = contents(open_table(path, validation=0.5, min_train_examples=7))

    assert found["d0", "validation"] == ["text 0 0"]
    assert len(found["d1", "validation"]) == 4
    with pytest.raises(ConfigError, match="at least 9 training rows"):
        open_table(path, validation=0.5, min_train_examples=9)
    assert list(open_table(path, validation=0.5, min_train_examples=8).ids) == ["d1"]
