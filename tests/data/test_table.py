"""Tables read by device: who stands where, who is on which side, who is taken."""

import shlex
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.cli import main
from partita.data.options import TableOptions, options_of
from partita.data.rows import BadData, BadRow
from partita.data.sides import keys_of, share_of
from partita.data.table import DeviceTable
from partita.errors import ConfigError
from tables import texts, write


def opened(path: Path, **options: Any) -> DeviceTable:
    return DeviceTable(path, TableOptions(**options), ("text",))


def contents(table: DeviceTable) -> dict[tuple[str, str], list[str]]:
    """The texts of a table by device and side."""
    return {
        (device, side): [row["text"] for row in rows.content]
        for device in table.ids
        for side, rows in table.rows_of(device).items()
    }


def side_of(device: int, row: int) -> str:
    return "test" if row % 3 == 2 else "train"


def test_a_devices_rows_are_read_by_side_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(split=side_of), group=4)

    table = opened(path)

    assert list(table.ids) == ["d0", "d1", "d2"]
    rows = table.rows_of("d1")
    assert [row["text"] for row in rows["train"].content] == ["text 1 0", "text 1 1", "text 1 3", "text 1 4"]
    assert [number for _, number in rows["train"].places] == [6, 7, 9, 10]
    assert rows["test"].places == [("t.parquet", 8), ("t.parquet", 11)]
    assert list(rows) == ["train", "test"]


def test_a_folder_of_files_is_one_table_and_a_device_may_be_cut_by_their_ends(tmp_path: Path) -> None:
    rows = texts(split=side_of)
    (tmp_path / "t").mkdir()
    write(tmp_path / "t/a.parquet", rows[:8])
    write(tmp_path / "t/b.parquet", rows[8:])

    table = opened(tmp_path / "t")

    one = contents(opened(write(tmp_path / "whole.parquet", rows)))
    assert contents(table) == one
    places = table.rows_of("d1")["train"].places
    assert places == [("a.parquet", 6), ("a.parquet", 7), ("b.parquet", 1), ("b.parquet", 2)]


def test_ids_may_be_in_any_order_and_of_any_type(tmp_path: Path) -> None:
    rows = [
        {"device": number, "text": f"t{number}", "split": s}
        for number in (30, 4, 100)
        for s in ("train", "test")
    ]

    table = opened(write(tmp_path / "t.parquet", rows))

    assert list(table.ids) == ["100", "30", "4"]
    assert table.rows_of("4")["test"].content == [{"text": "t4"}]


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    rows = [{"who": "a", "text": "x", "side": "train"}, {"who": "a", "text": "y", "side": "test"}]

    table = opened(write(tmp_path / "t.parquet", rows), device="who", split="side")

    assert contents(table) == {("a", "train"): ["x"], ("a", "test"): ["y"]}


def appended(rows: list[dict[str, Any]], more: int) -> list[dict[str, Any]]:
    """The rows with others after, before and between them, for every device."""
    new = [
        {**row, "text": f"{row['text']} new {n}", "id": f"new {row['id']} {n}"}
        for n in range(more)
        for row in rows
    ]
    return sorted([*new, *rows], key=lambda row: (row["device"], row["text"][::-1]))


def sides(table: DeviceTable) -> dict[str, str]:
    return {text: side for (_, side), found in contents(table).items() for text in found}


@pytest.mark.parametrize("drop", [(), ("id",)])
def test_rows_that_are_added_move_no_old_row(tmp_path: Path, drop: tuple[str, ...]) -> None:
    rows = texts(devices=5, rows=40, id=lambda device, row: f"{device}/{row}")
    more = [{name: value for name, value in row.items() if name not in drop} for row in appended(rows, 3)]
    rows = [{name: value for name, value in row.items() if name not in drop} for row in rows]

    before = sides(opened(write(tmp_path / "a.parquet", rows), validation=0.25))
    after = sides(opened(write(tmp_path / "b.parquet", more), validation=0.25))

    assert {text: after[text] for text in before} == before
    assert set(before.values()) == {"train", "validation", "test"}


def test_shares_are_about_what_was_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=4, rows=500), group=1000)

    drawn = list(sides(opened(path, test=0.3, validation=0.1)).values())

    assert drawn.count("test") / len(drawn) == pytest.approx(0.3, abs=0.03)
    # A tenth of the training rows, which are 70 %.
    assert drawn.count("validation") / len(drawn) == pytest.approx(0.07, abs=0.02)


def test_rows_of_one_group_stay_on_one_side(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(devices=4, rows=60, group=lambda device, row: row // 5))

    drawn = sides(opened(path))

    by_group: dict[int, set[str]] = {}
    for text, side in drawn.items():
        by_group.setdefault(int(text.split()[2]) // 5, set()).add(side)
    assert all(len(found) == 1 for found in by_group.values())
    assert set().union(*by_group.values()) == {"train", "test"}


def test_by_time_the_newest_rows_are_test(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=10, time=lambda device, row: (row * 7) % 10))

    table = opened(path, split="time", test=0.25)

    # A quarter of ten, rounded up: the three newest are those at times 7, 8 and 9.
    assert contents(table)["d1", "test"] == ["text 1 1", "text 1 4", "text 1 7"]
    assert len(contents(table)["d1", "train"]) == 7


def test_validation_is_taken_from_training_rows_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=60, split=side_of))

    without, held = contents(opened(path)), contents(opened(path, validation=0.2))

    for device in ("d0", "d1", "d2"):
        assert held[device, "test"] == without[device, "test"]
        assert sorted(held[device, "train"] + held[device, "validation"]) == sorted(without[device, "train"])


def test_by_time_validation_rows_are_the_newest_before_test(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(rows=10, time=lambda device, row: row))

    table = opened(path, split="time", test=0.2, validation=0.25)

    found = contents(table)
    assert found["d0", "test"] == ["text 0 8", "text 0 9"]
    assert found["d0", "validation"] == ["text 0 6", "text 0 7"]
    assert table._index.counts.tolist() == [[6, 2, 2]] * 3


@pytest.mark.parametrize(
    "options", [{}, {"split": "hash"}, {"validation": 0.4}, {"split": "time", "validation": 0.4}]
)
def test_the_index_counts_what_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = texts(devices=4, rows=15, split=side_of, time=lambda device, row: row % 7)
    table = opened(write(tmp_path / "t.parquet", rows), least_test=1, least_train=1, **options)

    for device, counts in zip(table.ids, table._index.counts.tolist(), strict=True):
        found = table.rows_of(device)
        assert [len(found.get(side, [])) for side in ("train", "validation", "test")] == counts


def test_which_columns_are_read_moves_no_row(tmp_path: Path) -> None:
    rows = texts(devices=3, rows=30, note=lambda device, row: f"n{row}")
    path = write(tmp_path / "t.parquet", rows)

    one, other = (
        DeviceTable(path, TableOptions(least_test=1), columns) for columns in (("text",), ("note", "text"))
    )

    assert sides(one) == sides(other)


def test_rows_are_told_apart_whatever_is_in_them(tmp_path: Path) -> None:
    # No text of these could be decoded, and no Python date is as late as these.
    columns = {
        "device": [f"d{row // 20}" for row in range(40)],
        "text": [f"text {row}" for row in range(40)],
        "note": not_utf8([b"\xff%d" % row for row in range(40)]),
        "late": pa.array([2**55 + row for row in range(40)], pa.timestamp("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")

    assert set(sides(opened(tmp_path / "t.parquet")).values()) == {"train", "test"}


def not_utf8(values: list[bytes]) -> pa.Array:
    """Texts of which some are not UTF-8, as programs that do not look write them."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_opening_a_table_of_large_rows_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with pq.ParquetWriter(path, pa.schema([("device", pa.string()), ("text", pa.string())])) as writer:
        for device in range(40):
            rows = [
                {"device": f"d{device:02}", "text": f"{device} {row} " + "x" * 200_000} for row in range(20)
            ]
            writer.write_table(pa.Table.from_pylist(rows))
    tracemalloc.start()

    table = opened(path, least_test=1)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table.ids) > 30
    # 160 MB in all; a few megabytes at a time, some of them twice.
    assert peak < 40_000_000


def test_an_unknown_device_is_no_other(tmp_path: Path) -> None:
    devices = opened(write(tmp_path / "t.parquet", texts(split=side_of))).devices(lambda rows: rows)

    for device in ("d0x", "a", "zzz"):
        with pytest.raises(KeyError):
            devices[device]


def test_hash_overrides_a_split_column(tmp_path: Path) -> None:
    rows = texts(rows=40, split=lambda device, row: "train")
    path = write(tmp_path / "t.parquet", rows)
    plain = write(tmp_path / "p.parquet", [{k: v for k, v in row.items() if k != "split"} for row in rows])

    assert contents(opened(path, split="hash")) == contents(opened(plain))


def test_a_picture_is_told_apart_by_its_bytes_and_not_by_its_path() -> None:
    one, other, changed = keys_of(
        [
            {"image": {"bytes": b"x", "path": "a.png"}},
            {"image": {"bytes": b"x", "path": "b.png"}},
            {"image": {"bytes": b"y", "path": "a.png"}},
        ]
    )

    assert one == other != changed
    assert 0 <= share_of(one, "test") < 1


def test_devices_with_few_rows_are_left_out_where_asked_for(tmp_path: Path) -> None:
    rows = [*texts(devices=2, rows=6, split=side_of), {"device": "few", "text": "x", "split": "train"}]
    path = write(tmp_path / "t.parquet", rows)

    assert list(opened(path, least_test=1).ids) == ["d0", "d1"]
    with pytest.raises(
        ConfigError,
        match="Device 'few' of `.*t.parquet` has no test rows, one of 1 without: `least_test = 1`",
    ):
        opened(path)
    with pytest.raises(ConfigError, match="No device of .* has as many rows as asked for"):
        opened(path, least_test=1, least_train=5)


def test_the_most_training_rows_are_the_first_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", texts(split=side_of))

    found = contents(opened(path, most=2))

    assert found["d0", "train"] == ["text 0 0", "text 0 1"]
    assert len(found["d0", "test"]) == 2


def test_a_sample_of_devices_is_fixed_and_stays_when_others_come(tmp_path: Path) -> None:
    few = list(opened(write(tmp_path / "a.parquet", texts(devices=20, split=side_of)), devices=5).ids)
    many = list(opened(write(tmp_path / "b.parquet", texts(devices=40, split=side_of)), devices=10).ids)

    assert len(few) == 5
    assert few == sorted(few)
    assert len(set(few) & set(many)) >= 2
    with pytest.raises(ConfigError, match="has 20 devices to take, fewer than `devices`"):
        opened(tmp_path / "a.parquet", devices=21)


def test_the_index_is_built_once_and_again_when_the_table_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.parquet", texts(split=side_of))
    opened(path)
    (index,) = tmp_path.glob("*.index")
    built: list[int] = []
    monkeypatch.setattr(DeviceTable, "_batches", counting(built, DeviceTable._batches))

    opened(path)
    assert not built
    write(path, texts(devices=4, split=side_of))
    assert len(opened(path).ids) == 4
    assert built == [1]
    index.write_bytes(b"broken")
    assert len(opened(path).ids) == 4
    assert built == [1, 1]


def counting(calls: list[int], function: Any) -> Any:
    def counted(self: DeviceTable) -> Iterable[Any]:
        calls.append(1)
        return function(self)

    return counted


def test_where_the_folder_cannot_be_written_the_index_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data/t.parquet", texts(split=side_of))
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.parent == path.parent:
            raise PermissionError
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)

    opened(path)

    assert len(list((tmp_path / "cache/partita").glob("t.parquet.*.index"))) == 1


def test_a_table_that_is_not_grouped_is_refused_with_the_command_that_sorts_it(tmp_path: Path) -> None:
    rows = texts(split=side_of)
    path = write(tmp_path / "t.parquet", [*rows[6:], *rows[:6], rows[-1]])

    with pytest.raises(ConfigError) as caught:
        opened(path)

    assert f"'d2' stands in several places: `partita import sort {path} OUT.parquet`" in str(caught.value)


def test_a_table_that_is_not_grouped_is_sorted_on_request_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = texts(split=side_of)
    grouped = opened(write(tmp_path / "grouped.parquet", rows))
    path = write(tmp_path / "t.parquet", [*rows[1::2], *rows[::2]])

    both = [opened(path, sort=True) for _ in range(2)]

    for table in both:
        assert list(table.ids) == list(grouped.ids)
        for device in grouped.ids:
            for side, own in grouped.rows_of(device).items():
                found = table.rows_of(device)[side].content
                assert sorted(map(str, found)) == sorted(map(str, own.content))
    assert len(list((tmp_path / "cache/partita").glob("t.parquet.*.sorted.parquet"))) == 1
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"`{path}` is not grouped by device"
    ]


@pytest.mark.parametrize("column", ["who", "2", "who is it", 'a "name"', "true"])
@pytest.mark.parametrize("ids", [["b", "a", "b"], [0.5, 1.5, 0.5], [True, False, True], [b"b", b"a", b"b"]])
def test_the_command_of_a_refusal_works(tmp_path: Path, column: str, ids: list[Any]) -> None:
    rows = [
        {column: device, "text": f"{place}", "split": split}
        for split in ("train", "test")
        for place, device in enumerate(ids)
    ]
    path = write(tmp_path / "my table.parquet", rows)
    with pytest.raises(ConfigError) as caught:
        opened(path, device=column)

    command = str(caught.value).split("`")[3].replace("OUT.parquet", str(tmp_path / "out.parquet"))

    assert main(shlex.split(command)[1:]) == 0
    assert len(opened(tmp_path / "out.parquet", device=column).ids) == 2


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"device": "a", "words": "x"}], {}, "t.parquet` has no column `text`, only device, words."),
        ([{"text": "x"}], {}, "has no column `device`"),
        ([{"device": "a", "text": "x"}], {"split": "side"}, "has no column `side`"),
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
        ([{"device": ["a"], "text": "x"}], {}, "must hold texts or numbers, it holds list"),
        (
            [{"device": "a", "text": "x"}, {"device": "", "text": "y"}],
            {},
            "`t.parquet`, row 1: `device` is empty.",
        ),
        (
            [{"device": "a", "text": "x", "split": {"side": "train"}}],
            {},
            "t.parquet`: `split` must hold train, validation, test, it holds struct<side: string>.",
        ),
        ([{"device": "a", "text": "x", "patient": 1}], {"group": "patinet"}, "has no column `patinet`"),
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
def test_what_is_wrong_with_a_table_is_one_line(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "t.parquet", rows)

    with pytest.raises(ConfigError) as caught:
        opened(path, **options)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_a_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("no")
    pq.write_table(
        pa.table({"device": pa.array([], pa.string()), "text": pa.array([], pa.string())}),
        tmp_path / "empty.parquet",
    )
    (tmp_path / "folder").mkdir()

    for name, words in (
        ("no.parquet", "cannot be read as Parquet"),
        ("none.parquet", "There is no file or folder"),
        ("folder", "has no `.*parquet` files"),
        ("empty.parquet", "has no rows"),
    ):
        with pytest.raises(ConfigError, match=words):
            opened(tmp_path / name)


def test_bad_rows_are_named_or_skipped_and_counted(tmp_path: Path) -> None:
    def use(row: Any) -> str:
        if row["text"].endswith("3"):
            raise BadRow("`text` ends with 3")
        return row["text"]

    path = write(tmp_path / "t.parquet", texts(split=side_of))
    strict, lax = opened(path), opened(path, skip_bad=True)

    with pytest.raises(
        BadData, match="`t.parquet`, row 9, device 'd1': `text` ends with 3 .`skip_bad = true`"
    ):
        strict.rows_of("d1")["train"].used(use)
    assert lax.rows_of("d1")["train"].used(use) == ["text 1 0", "text 1 1", "text 1 4"]
    lax.rows_of("d1")["train"].used(use)
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
        strict.rows_of("b")["train"].used(lambda row: row["text"])
    assert lax.rows_of("b")["train"].used(lambda row: row["text"]) == ["four"]
    assert list(map(str, lax.skipped)) == ["`t.parquet`, row 4, device 'b': `text` is not UTF-8"]
    # What can be read of such a row is read.
    assert strict.rows_of("b")["train"].used(lambda row: row["note"]) == ["x", "x"]


def test_an_id_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    ids = not_utf8([b"a", b"a", b"b\xff"])
    pq.write_table(pa.table({"device": ids, "text": ["x", "y", "z"]}), tmp_path / "t.parquet")

    with pytest.raises(ConfigError, match="^`t.parquet`, row 2: `device` is not UTF-8.$"):
        opened(tmp_path / "t.parquet")


def test_a_row_group_that_is_damaged_is_named_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = pa.Table.from_pylist(texts(devices=3, rows=200, split=side_of))
    pq.write_table(rows, path, row_group_size=200, compression="zstd", use_dictionary=False)
    table = opened(path)
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


def test_columns_of_one_name_are_one_line(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array(["x"]), pa.array(["y"])], ["device", "text", "text"]
    )
    pq.write_table(table, tmp_path / "t.parquet")

    with pytest.raises(ConfigError, match="has several columns `text`: each needs a name of its own"):
        opened(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (
            texts(text=lambda device, row: "same"),
            {},
            "rows with the same content go to the same side. A column",
        ),
        (texts(rows=1), {}, "each has one row."),
        (texts(rows=9, group=lambda device, row: 1), {}, "its column `group` tells the sides"),
        (texts(rows=9), {"test": 0.0}, "`test` is 0."),
        (texts(split=lambda device, row: "train"), {"least_test": 1}, "look at its column `split`."),
    ],
)
def test_where_no_device_has_both_sides_the_reason_is_said(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "t.parquet", rows)

    with pytest.raises(ConfigError) as caught:
        opened(path, **options)

    assert f"No device of `{path}` has both training and test rows: {words}" in str(caught.value)
    assert "least_test" not in str(caught.value)


def test_examples_are_made_when_they_are_asked_for(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    table = opened(write(tmp_path / "t.parquet", texts(split=side_of)))

    devices = table.devices(lambda rows: asked.append((rows.device, rows.side)) or [1.0] * len(rows))
    splits = devices["d1"]
    assert "test" in splits
    assert not asked
    assert len(splits["train"]) == 4

    assert asked == [("d1", "train")]
    assert "d9" not in devices


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tets": 0.2}, "There is no key `tets`. Did you mean `test`?"),
        ({"frobnicate": 1}, "There is no key `frobnicate`. Known: device, split"),
        ({"test": "a"}, "`test` must be a number, got 'a'."),
        ({"least_train": 1.5}, "`least_train` must be a whole number, got 1.5."),
        ({"devices": True}, "`devices` must be a whole number, got True."),
        ({"test": 1.0}, "`test` must be at least 0 and below 1, got 1.0."),
        ({"most": -1}, "`most` must be 0 or above, got -1."),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        options_of(given)


def test_whole_numbers_are_shares_too() -> None:
    assert options_of({"test": 0}).test == 0
