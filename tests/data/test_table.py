"""Tables read by device: rows by split, bad rows, and errors."""

import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.cli import main
from partita.data.options import TableOptions
from partita.data.rows import BadData, BadRow
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from tables import contents, not_utf8, open_table, split_of, texts, write


def test_rows_are_read_by_split_with_their_locations(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(split=split_of), group=4)

    table = open_table(path)

    assert list(table.ids) == ["d0", "d1", "d2"]
    rows = table.rows_of("d1")
    assert [row["text"] for row in rows["train"].content] == ["text 1 0", "text 1 1", "text 1 3", "text 1 4"]
    assert [number for _, number in rows["train"].locations] == [6, 7, 9, 10]
    assert rows["test"].locations == [("t.parquet", 8), ("t.parquet", 11)]
    assert list(rows) == ["train", "test"]


def test_a_folder_of_files_is_one_table_and_a_device_may_span_two_files(tmp_path: Path) -> None:
    rows = texts(split=split_of)
    (tmp_path / "t").mkdir()
    write(tmp_path / "t/a.parquet", rows[:8])
    write(tmp_path / "t/b.parquet", rows[8:])

    table = open_table(tmp_path / "t")

    one = contents(open_table(write(tmp_path / "whole.parquet", rows)))
    assert contents(table) == one
    locations = table.rows_of("d1")["train"].locations
    assert locations == [("a.parquet", 6), ("a.parquet", 7), ("b.parquet", 1), ("b.parquet", 2)]


def test_ids_may_be_in_any_order_and_of_any_type(tmp_path: Path) -> None:
    rows = [
        {"device": number, "text": f"t{number}", "split": s}
        for number in (30, 4, 100)
        for s in ("train", "test")
    ]

    table = open_table(write(tmp_path / "t.parquet", rows))

    assert list(table.ids) == ["100", "30", "4"]
    assert table.rows_of("4")["test"].content == [{"text": "t4"}]


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    rows = [{"who": "a", "text": "x", "part": "train"}, {"who": "a", "text": "y", "part": "test"}]

    table = open_table(write(tmp_path / "t.parquet", rows), device="who", split="part")

    assert contents(table) == {("a", "train"): ["x"], ("a", "test"): ["y"]}


@pytest.mark.slow
def test_opening_a_table_of_large_rows_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(path, pa.schema([("device", pa.string()), ("text", pa.string())])) as writer:
        for device in range(40):
            rows = [
                {"device": f"d{device:02}", "text": f"{device} {row} " + "x" * 200_000} for row in range(20)
            ]
            writer.write_table(pa.Table.from_pylist(rows))
    tracemalloc.start()

    table = open_table(path, min_test_examples=1)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.ids) > 30
    # 160 MB in all; a few megabytes at a time, some of them twice.
    assert peak < 40_000_000


def test_an_unknown_device_is_a_key_error(tmp_path: Path) -> None:
    devices = open_table(write(tmp_path / "t.parquet", texts(split=split_of))).devices(lambda rows: rows)

    for device in ("d0x", "a", "zzz"):
        with pytest.raises(KeyError):
            devices[device]


def test_max_examples_keeps_the_first_training_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(split=split_of))

    found = contents(open_table(path, max_examples=2))

    assert found["d0", "train"] == ["text 0 0", "text 0 1"]
    assert len(found["d0", "test"]) == 2


def test_the_largest_device_is_known_without_reading_a_row(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(split=split_of))
    most = max(len(rows) for (_, split), rows in contents(open_table(path)).items() if split == "train")

    def fail(rows: object) -> None:
        raise AssertionError("A row was read.")

    counts = [open_table(path, max_examples=limit).devices(fail).largest for limit in (0, 2)]

    assert [largest and largest() for largest in counts] == [most, 2]


def test_an_ungrouped_table_is_an_error_with_the_command_that_sorts_it(tmp_path: Path) -> None:
    rows = texts(split=split_of)
    path = write(tmp_path / "t.parquet", [*rows[6:], *rows[:6], rows[-1]])

    with pytest.raises(ConfigError) as caught:
        open_table(path)

    assert f"those of 'd2' are in several places: `partita import sort {path} OUT.parquet`" in str(
        caught.value
    )


def test_an_ungrouped_table_is_sorted_once_with_sort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = texts(split=split_of)
    grouped = open_table(write(tmp_path / "grouped.parquet", rows))
    path = write(tmp_path / "t.parquet", [*rows[1::2], *rows[::2]])

    both = [open_table(path, sort=True) for _ in range(2)]

    for table in both:
        assert list(table.ids) == list(grouped.ids)
        for device in grouped.ids:
            for split, own in grouped.rows_of(device).items():
                found = table.rows_of(device)[split].content
                assert sorted(map(str, found)) == sorted(map(str, own.content))
    assert len(list((tmp_path / "cache/partita").glob("t.parquet.*.sorted.parquet"))) == 1
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"`{path}` is not grouped by device"
    ]


@pytest.mark.parametrize("column", ["who", "2", "who is it", 'a "name"', "true"])
@pytest.mark.parametrize("ids", [["b", "a", "b"], [0.5, 1.5, 0.5], [True, False, True], [b"b", b"a", b"b"]])
def test_the_command_in_the_error_works(tmp_path: Path, column: str, ids: list[Any]) -> None:
    rows = [
        {column: device, "text": f"{number}", "split": split}
        for split in ("train", "test")
        for number, device in enumerate(ids)
    ]
    path = write(tmp_path / "my table.parquet", rows)
    with pytest.raises(ConfigError) as caught:
        open_table(path, device=column)

    command = str(caught.value).split("`")[3].replace("OUT.parquet", str(tmp_path / "out.parquet"))

    assert main(shlex.split(command)[1:]) == 0
    assert len(open_table(tmp_path / "out.parquet", device=column).ids) == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"device": "a", "words": "x"}], {}, "t.parquet` has no column `text`. Its columns: device, words."),
        ([{"text": "x"}], {}, "has no column `device`"),
        ([{"device": "a", "text": "x"}], {"split": "part"}, "has no column `part`"),
        ([{"device": "a", "text": "x"}], {"split": "time"}, "has no column `time`"),
        (
            [{"device": "a", "text": "x", "split": "train"}, {"device": "b", "text": "y", "split": "Test"}],
            {},
            "`t.parquet`, row 1, device 'b': `split` must be train, validation, test, got 'Test'.",
        ),
        (
            [{"device": "a", "text": "x", "split": None}],
            {},
            "`t.parquet`, row 0, device 'a': `split` must be train, validation, test, got None.",
        ),
        (
            [{"device": "a", "text": "x"}, {"device": None, "text": "y"}],
            {},
            "`t.parquet`, row 1: `device` is empty.",
        ),
        ([{"device": ["a"], "text": "x"}], {}, "must hold strings or numbers, got list"),
        (
            [{"device": "a", "text": "x"}, {"device": "", "text": "y"}],
            {},
            "`t.parquet`, row 1: `device` is empty.",
        ),
        (
            [{"device": "a", "text": "x", "split": {"part": "train"}}],
            {},
            "t.parquet`: `split` must hold train, validation, test, got struct<part: string>.",
        ),
        (
            [{"device": "a", "text": "x", "patient": 1}],
            {"group": "patinet"},
            "has no column `patinet`. Did you mean `patient`? Its",
        ),
        ([{"device": "a", "text": "x", "id": None}], {}, "`t.parquet`, row 0, device 'a': `id` is empty."),
        (
            [{"device": "a", "text": "x", "time": None}],
            {"split": "time"},
            "`t.parquet`, row 0, device 'a': `time` is empty.",
        ),
        (
            [{"device": "a", "text": "x", "time": 1, "group": 1}],
            {"split": "time"},
            'has groups, which `split = "time"`',
        ),
        (
            [{"device": "a", "text": "x", "split": 3}],
            {},
            "device 'a': `split` must be train, validation, test, got '3'",
        ),
    ],
)
def test_an_invalid_table_is_a_one_line_error(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "t.parquet", rows)

    with pytest.raises(ConfigError) as caught:
        open_table(path, **options)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_a_table_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("no")
    pq.write_table(
        pa.table({"device": pa.array([], pa.string()), "text": pa.array([], pa.string())}),
        tmp_path / "empty.parquet",
    )
    (tmp_path / "folder").mkdir()

    for name, message in (
        ("no.parquet", "cannot be read as Parquet"),
        ("none.parquet", "There is no file or folder"),
        ("folder", "has no `.*parquet` files"),
        ("empty.parquet", "has no rows"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_table(tmp_path / name)


def test_a_bad_row_is_an_error_with_its_location_or_skipped_and_counted(tmp_path: Path) -> None:
    def parse(row: Any) -> str:
        if row["text"].endswith("3"):
            raise BadRow("`text` ends with 3")
        return row["text"]

    path = write(tmp_path / "t.parquet", texts(split=split_of))
    strict, lax = open_table(path), open_table(path, skip_bad=True)

    with pytest.raises(
        BadData, match="`t.parquet`, row 9, device 'd1': `text` ends with 3 .`skip_bad = true`"
    ):
        strict.rows_of("d1")["train"].parse(parse)
    assert lax.rows_of("d1")["train"].parse(parse) == ["text 1 0", "text 1 1", "text 1 4"]
    lax.rows_of("d1")["train"].parse(parse)
    assert list(map(str, lax.skipped)) == ["`t.parquet`, row 9, device 'd1': `text` ends with 3"]


def test_a_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    columns = {
        "device": ["a"] * 3 + ["b"] * 3,
        "split": ["train", "train", "test"] * 2,
        "text": not_utf8([b"one", b"two", b"three", b"four", b"fi\xffve", b"six"]),
        "note": ["x"] * 6,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    strict, lax = (
        DeviceTable(tmp_path / "t.parquet", TableOptions(skip_bad=skip), ("text", "note"))
        for skip in (False, True)
    )

    with pytest.raises(BadData, match="`t.parquet`, row 4, device 'b': `text` is not UTF-8"):
        strict.rows_of("b")["train"].parse(lambda row: row["text"])
    assert lax.rows_of("b")["train"].parse(lambda row: row["text"]) == ["four"]
    assert list(map(str, lax.skipped)) == ["`t.parquet`, row 4, device 'b': `text` is not UTF-8"]
    # The other columns of such a row can be read.
    assert strict.rows_of("b")["train"].parse(lambda row: row["note"]) == ["x", "x"]


def test_an_id_that_is_not_utf8_is_a_one_line_error(tmp_path: Path) -> None:
    ids = not_utf8([b"a", b"a", b"b\xff"])
    pq.write_table(pa.table({"device": ids, "text": ["x", "y", "z"]}), tmp_path / "t.parquet")

    with pytest.raises(ConfigError, match="^`t.parquet`, row 2: `device` is not UTF-8.$"):
        open_table(tmp_path / "t.parquet")


def test_a_damaged_row_group_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = pa.Table.from_pylist(texts(devices=3, rows=200, split=split_of))
    pq.write_table(rows, path, row_group_size=200, compression="zstd", use_dictionary=False)
    table = open_table(path)
    page = pq.read_metadata(path).row_group(2).column(1)
    content = bytearray(path.read_bytes())
    begin, end = page.data_page_offset + 60, page.data_page_offset + page.total_compressed_size - 20
    content[begin:end] = bytes(end - begin)
    path.write_bytes(content)

    assert len(table.rows_of("d1")["train"]) == 134
    with pytest.raises(ConfigError) as caught:
        table.rows_of("d2")

    assert str(caught.value).startswith("`t.parquet`, row 400, device 'd2': the row group cannot be read, ")
    assert "\n" not in str(caught.value)


def test_repeated_column_names_are_a_one_line_error(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["x"]), pa.array(["y"])], ["device", "text", "text"]
    )
    pq.write_table(table, tmp_path / "t.parquet")

    with pytest.raises(ConfigError, match="has several columns `text`: column names must be unique"):
        open_table(tmp_path / "t.parquet")


def test_examples_are_made_on_access(tmp_path: Path) -> None:
    made: list[tuple[str, str]] = []
    table = open_table(write(tmp_path / "t.parquet", texts(split=split_of)))

    devices = table.devices(lambda rows: made.append((rows.device, rows.split)) or [1.0] * len(rows))
    splits = devices["d1"]
    assert "test" in splits
    assert not made
    assert len(splits["train"]) == 4

    assert made == [("d1", "train")]
    assert "d9" not in devices
