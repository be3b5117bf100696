"""Sorting tables by device in bounded memory, compared with sorted()."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partita.data.sort import chunks, sort_table
from partita.data.writing import BYTES
from partita.errors import ConfigError

MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = [
    " ",
    "a",
    "B",
    "b",
    "a b",
    "Z",
    "é",
    "日本",
    "\U0001f600",
    "\uffee",
    "device-10",
    "device-9",
    "7" * 300,
]


def random_rows(seed: int, ids: list[Any], count: int = 400) -> list[dict[str, Any]]:
    """Return rows of very different sizes, with nulls in every column but `device`."""
    draw = random.Random(seed)
    return [
        {
            "row": number,
            "device": draw.choice(ids),
            "text": draw.choice([None, "", "x" * draw.randrange(200)]),
            "number": draw.choice([None, draw.random()]),
            "image": draw.choice([None, {"bytes": draw.randbytes(draw.randrange(300)), "path": None}]),
            "words": draw.choice([None, [], [None, "one"], ["two"] * 5]),
        }
        for number in range(count)
    ]


def schema_with(device: pa.DataType) -> pa.Schema:
    columns: list[Any] = [
        *(("row", pa.int32()), ("device", device), ("text", pa.large_string()), ("number", pa.float32())),
        *(("image", MEDIA), ("words", pa.list_(pa.string()))),
    ]
    return pa.schema(columns, metadata={"huggingface": "{}", "mine": "kept"})


@pytest.mark.parametrize(
    ("memory", "size"),
    [(300, 100), pytest.param(10_000, 200, marks=pytest.mark.slow), (256_000_000, 400)],
)
@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        (pa.string(), NAMES),
        (pa.large_string(), NAMES[:3]),
        (pa.dictionary(pa.int8(), pa.string()), NAMES),
        (pa.int64(), [-(2**63), -2, -10, 0, 1, 2, 9, 10, 100, 2**63 - 1]),
        (pa.uint8(), list(range(256))),
        (pa.int16(), [5]),
        (pa.float64(), [0.5, -1.5, 10.0, 9.0]),
        (pa.bool_(), [True, False]),
        (pa.binary(), [b"b", b"a"]),
    ],
)
def test_rows_are_in_the_order_of_sorted(
    tmp_path: Path, kind: pa.DataType, ids: list[Any], memory: int, size: int
) -> None:
    for seed in range(2):
        rows, schema = random_rows(seed, ids, size), schema_with(kind)
        source, out = tmp_path / f"{seed}.parquet", tmp_path / f"{seed}_sorted.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), source, row_group_size=size // 3)

        count = sort_table(source, out, memory=memory)

        table = pq.read_table(out)
        assert count == size
        assert table.schema.equals(pq.read_schema(source), check_metadata=True)
        assert table.schema.metadata[b"mine"] == b"kept"
        # sorted() is stable: rows of one device keep their order.
        expected = pa.Table.from_pylist(sorted(rows, key=lambda row: str(row["device"])), schema)
        assert table.to_pylist() == expected.to_pylist()


def test_more_runs_than_can_be_merged_at_once_are_merged_in_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"row": number, "device": str(number % 7)} for number in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    monkeypatch.setattr("partita.data.sort._MAX_RUNS", 3)
    progress: list[int] = []

    sort_table(
        *(tmp_path / "in.parquet", tmp_path / "out.parquet"),
        memory=1,
        progress=lambda done, _: progress.append(done),
    )

    # One row per run: 100 runs, then 34, 12, 4, 2, then the table. Every row is written six times.
    assert progress[-1] == 600
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.to_pylist() == sorted(rows, key=lambda row: row["device"])


def test_files_of_a_folder_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for name, about in (("b", "second"), ("a", "first"), ("c", "third")):
        table = pa.table({"device": ["y", "x"], "file": [name, name]})
        pq.write_table(table.replace_schema_metadata({"about": about}), tmp_path / "many" / f"{name}.parquet")
    (tmp_path / "many" / "readme.txt").write_text("not a table")

    rows = sort_table(tmp_path / "many", tmp_path / "many" / "out.parquet", memory=1)

    table = pq.read_table(tmp_path / "many" / "out.parquet")
    assert rows == 6
    assert table["device"].to_pylist() == ["x"] * 3 + ["y"] * 3
    assert table["file"].to_pylist() == ["a", "b", "c"] * 2
    assert table.schema.metadata == {b"about": b"first"}


def test_another_column_may_hold_the_device_ids(tmp_path: Path) -> None:
    pq.write_table(pa.table({"device": [1, 2, 3], "writer": ["c", "a", "b"]}), tmp_path / "in.parquet")

    sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet", device="writer")

    assert pq.read_table(tmp_path / "out.parquet")["device"].to_pylist() == [2, 3, 1]


def test_a_table_without_rows_can_be_sorted(tmp_path: Path) -> None:
    pq.write_table(schema_with(pa.string()).empty_table(), tmp_path / "in.parquet")

    assert sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet") == 0

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 0
    assert table.schema.equals(pq.read_schema(tmp_path / "in.parquet"), check_metadata=True)


@pytest.mark.slow
def test_memory_stays_bounded_on_a_table_many_times_as_large(tmp_path: Path) -> None:
    # 64 MB of incompressible content in one row group; the longest rows all belong to one device, and so are
    # adjacent in the result.
    draw = random.Random(0)
    rows = [
        {"device": 7, "content": draw.randbytes(64_000)}
        if draw.random() < 0.01
        else {"device": draw.randrange(900), "content": draw.randbytes(640)}
        for _ in range(50_000)
    ]
    table = pa.Table.from_pylist(rows, pa.schema([("device", pa.int64()), ("content", pa.binary())]))
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=50_000, compression="none")
    code = (
        "import sys, pathlib, pyarrow as pa; from partita.data.sort import sort_table;"
        "sort_table(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), memory=4_000_000);"
        "print(pa.default_memory_pool().max_memory())"
    )

    run = [sys.executable, "-c", code, str(tmp_path / "in.parquet"), str(tmp_path / "out.parquet")]
    peak = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)

    assert table.nbytes > 60e6
    # The requested memory, and the writer's: on its own it was measured to hold up to five copies of a row group.
    assert peak < 4_000_000 + 6 * BYTES
    out = pq.ParquetFile(tmp_path / "out.parquet")
    assert out.metadata.num_rows == 50_000
    sizes = [out.metadata.row_group(group).total_byte_size for group in range(out.num_row_groups)]
    assert max(sizes) < 5e6


def test_progress_ends_with_all_done(tmp_path: Path) -> None:
    pq.write_table(pa.table({"device": [str(n % 5) for n in range(500)]}), tmp_path / "in.parquet")
    calls: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total))

    sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet", memory=20, progress=progress)

    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[0][1] == 1000
    # More than 64 runs: an additional merge writes all rows once more.
    assert calls[-1] == (1500, 1500)


def test_chunks_have_all_rows_in_order_and_at_most_the_given_size() -> None:
    table = pa.table({"content": [b"x" * size for size in (1000, 1, 1, 1, 50, 50, 3000, 2)]})

    found = list(chunks(table, 120))

    assert pa.concat_tables(found).equals(table)
    assert all(chunk.nbytes <= 120 or len(chunk) == 1 for chunk in found)


def test_a_missing_column_is_an_error_that_lists_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a"], "label": [1]}), tmp_path / "in.parquet")

    with pytest.raises(ConfigError, match="in.parquet` has no column 'device'. Its columns: user, label.$"):
        sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize("values", [[["a"]], [{"name": "a"}]])
def test_ids_that_cannot_be_cast_to_strings_are_refused(tmp_path: Path, values: list[Any]) -> None:
    pq.write_table(pa.table({"device": values}), tmp_path / "in.parquet")

    with pytest.raises(ConfigError, match="must hold strings or numbers, got (list|struct)"):
        sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet")


@pytest.mark.parametrize(
    ("value", "problem"), [(b"", "is empty"), (b"\xff", "is not UTF-8"), (None, "is empty")]
)
def test_a_row_without_a_valid_id_is_an_error(tmp_path: Path, value: bytes | None, problem: str) -> None:
    raw = pa.array([b"a", value], pa.binary())
    for number, ids in enumerate([raw, pa.Array.from_buffers(pa.string(), 2, raw.buffers())]):
        pq.write_table(pa.table({"device": ids}), tmp_path / f"{number}.parquet")

        with pytest.raises(ConfigError, match=f"{number}.parquet`, row 1: `device` {problem}"):
            sort_table(tmp_path / f"{number}.parquet", tmp_path / "out.parquet")


def test_a_row_without_an_id_is_located_by_file_and_row(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    pq.write_table(pa.table({"device": ["a"] * 9}), tmp_path / "many" / "a.parquet")
    pq.write_table(
        pa.table({"device": ["a"] * 5000 + [None]}), tmp_path / "many" / "b.parquet", row_group_size=900
    )

    with pytest.raises(ConfigError, match="many/b.parquet`, row 5000: `device` is empty"):
        sort_table(tmp_path / "many", tmp_path / "out.parquet")

    assert [path.name for path in tmp_path.iterdir()] == ["many"]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    pq.write_table(pa.table({"device": ["a"]}), tmp_path / "in.parquet")
    (tmp_path / "out.parquet").write_text("precious")

    with pytest.raises(ConfigError, match="out.parquet` exists already: give another name"):
        sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet")

    assert (tmp_path / "out.parquet").read_text() == "precious"


@pytest.mark.parametrize("after", [2, 900])
def test_an_interrupted_sort_leaves_no_files(tmp_path: Path, after: int) -> None:
    pq.write_table(
        pa.table({"device": [str(n) for n in range(500)]}), tmp_path / "in.parquet", row_group_size=10
    )

    def progress(done: int, total: int) -> None:
        if done >= after:
            # There are runs on disk by now.
            assert len(list(tmp_path.rglob("*"))) > 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet", memory=1000, progress=progress)

    assert [path.name for path in tmp_path.rglob("*")] == ["in.parquet"]


def test_files_with_different_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    pq.write_table(pa.table({"device": ["a"], "label": [1]}), tmp_path / "many" / "a.parquet")
    pq.write_table(pa.table({"device": ["a"], "label": ["one"]}), tmp_path / "many" / "b.parquet")

    with pytest.raises(ConfigError, match="b.parquet` has other columns than .*a.parquet`"):
        sort_table(tmp_path / "many", tmp_path / "out.parquet")


def test_a_file_that_is_not_a_table_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("device,label\n1,2\n")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"device": ["a" * 9_000]}), tmp_path / "cut.parquet", compression="none")
    content = bytearray((tmp_path / "cut.parquet").read_bytes())
    content[4:30] = b"\xff" * 26
    (tmp_path / "cut.parquet").write_bytes(content)
    wrong = {
        "text.parquet": "cannot be read as Parquet",
        "empty": "has no `\\*.parquet` files",
        "nothing.parquet": "There is no file or folder",
        "cut.parquet": "cut.parquet` cannot be read: ",
    }

    for name, message in wrong.items():
        with pytest.raises(ConfigError, match=message) as error:
            sort_table(tmp_path / name, tmp_path / "out.parquet")
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out.parquet").exists()


def test_invalid_values_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"device": ["a"]}), tmp_path / "in.parquet")

    with pytest.raises(ConfigError, match="`memory` must be at least 1 byte, got 0"):
        sort_table(tmp_path / "in.parquet", tmp_path / "out.parquet", memory=0)
    with pytest.raises(ConfigError, match="There is no folder `.*nowhere`"):
        sort_table(tmp_path / "in.parquet", tmp_path / "nowhere" / "out.parquet")
