"""Sorted copies of tables: as private as the table, and not left behind."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.data import sorted_copy
from partita.data.sort import sort_table
from partita.errors import ConfigError
from tables import contents, open_table, split_of, texts, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache/partita"
    end_process()


def mixed(path: Path, *, devices: int = 3) -> Path:
    rows = texts(devices=devices, split=split_of)
    return write(path, rows[::2] + rows[1::2])


def names(folder: Path) -> set[str]:
    """Return the names of files, without locks."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("given", [0o600, 0o640, 0o644])
def test_what_is_derived_from_a_table_has_its_permissions(tmp_path: Path, cache: Path, given: int) -> None:
    path = mixed(tmp_path / "t.parquet")
    path.chmod(given)

    open_table(path, sort=True)

    files = [*cache.glob("t.parquet.*"), *tmp_path.glob("t.parquet.*")]
    assert {file.suffix for file in files} == {".parquet", ".index"}
    assert {mode(file) for file in files} == {given}


def test_a_copy_of_several_files_is_as_private_as_the_most_private(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "t").mkdir()
    mixed(tmp_path / "t/a.parquet").chmod(0o644)
    mixed(tmp_path / "t/b.parquet").chmod(0o600)

    open_table(tmp_path / "t", sort=True)

    (copy,) = cache.glob("*.sorted.parquet")
    assert mode(copy) == 0o600


def test_a_sorted_table_has_the_permissions_of_its_source(tmp_path: Path) -> None:
    path = mixed(tmp_path / "t.parquet")
    path.chmod(0o600)
    modes: list[int] = []

    def note(done: int, total: int) -> None:
        modes.append(mode(tmp_path / "out.parquet.partita-import"))

    sort_table(path, tmp_path / "out.parquet", progress=note)

    assert mode(tmp_path / "out.parquet") == 0o600
    assert set(modes) == {0o700}  # Its files are private while it is written.


def test_the_copy_of_an_earlier_state_is_deleted(tmp_path: Path, cache: Path) -> None:
    path = mixed(tmp_path / "t.parquet")
    other = mixed(tmp_path / "other.parquet")
    open_table(other, sort=True)
    open_table(path, sort=True)
    before = names(cache)
    end_process()

    mixed(path, devices=4)
    table = open_table(path, sort=True)

    assert len({device for device, _ in contents(table)}) == 4
    assert len(names(cache)) == len(before)
    assert len([name for name in names(cache) if name in before]) == 2  # Those of the other table.


def test_a_copy_that_a_process_reads_stays(tmp_path: Path, cache: Path) -> None:
    path = mixed(tmp_path / "t.parquet")
    table = open_table(path, sort=True)

    mixed(path, devices=4)
    open_table(path, sort=True)

    assert len(list(cache.glob("t.parquet.*.sorted.parquet"))) == 2
    assert len({device for device, _ in contents(table)}) == 3


def end_process() -> None:
    """Release the locks of this process, as if it had ended."""
    for descriptor in sorted_copy._IN_USE.values():
        os.close(descriptor)
    sorted_copy._IN_USE.clear()


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_what_killed_processes_left_is_deleted(tmp_path: Path, cache: Path) -> None:
    path = mixed(tmp_path / "t.parquet")
    copy = sorted_copy.ensure_sorted_copy(path, [path], device="device")
    end_process()
    copy.unlink()
    base = copy.name.partition(".sorted")[0].rpartition(".")[0]
    folder = cache / f"{base}.0123456789ab.sorted.parquet.{dead_process()}.tmp.partita-import"
    folder.mkdir()
    for name in ("import.partita", "run-000000001.partita", "whole.partita"):
        (folder / name).write_text("left")
    unfinished = cache / f"{base}.0123456789ab.sorted.parquet.{dead_process()}.tmp"
    unfinished.write_text("left")
    (cache / f"{base}.0123456789ab.sorted.parquet").write_text("of an earlier version")
    alive = cache / f"{base}.0123456789ab.sorted.parquet.{os.getpid()}.tmp"
    alive.write_text("mine")
    foreign = cache / f"t.parquet.{'0' * 12}.0123456789ab.sorted.parquet"
    foreign.write_text("of a table elsewhere")

    sorted_copy.ensure_sorted_copy(path, [path], device="device")

    assert names(cache) == {copy.name, alive.name, foreign.name}


def test_a_sort_that_failed_is_begun_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mixed(tmp_path / "t.parquet")

    def fail(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sorted_copy, "sort_stream", fail)
        with pytest.raises(OSError, match="No space left"):
            open_table(path, sort=True)

    assert len({device for device, _ in contents(open_table(path, sort=True))}) == 3


def test_rows_are_located_in_the_table_and_not_in_its_copy(tmp_path: Path) -> None:
    rows = [{**row, "row": "taken"} for row in texts(split=split_of)]
    (tmp_path / "t").mkdir()
    write(tmp_path / "t/a.parquet", rows[1::2])
    write(tmp_path / "t/b.parquet", rows[::2])

    table = open_table(tmp_path / "t", sort=True)

    for device in table.ids:
        for found in table.rows_of(device).values():
            for (file, number), row in zip(found.locations, found.content, strict=True):
                given = rows[1::2] if file == "a.parquet" else rows[::2]
                assert given[number]["text"] == row["text"]
    assert table.groups.schema.names == ["device", "text", "split", "row"]


def test_splits_of_a_copy_are_those_of_the_table(tmp_path: Path) -> None:
    rows = texts(rows=12)  # Without a column `split`, it follows from the content.

    found = contents(open_table(write(tmp_path / "mixed.parquet", rows[::2] + rows[1::2]), sort=True))

    expected = contents(open_table(write(tmp_path / "t.parquet", rows)))
    assert {key: sorted(own) for key, own in found.items()} == {
        key: sorted(own) for key, own in expected.items()
    }


def test_a_damaged_copy_is_refused(tmp_path: Path, cache: Path) -> None:
    path = mixed(tmp_path / "t.parquet", devices=5)
    expected = contents(open_table(path, sort=True))
    (copy,) = cache.glob("*.sorted.parquet")
    content = copy.read_bytes()
    errors: list[str] = []

    for place in range(0, len(content), 29):
        copy.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        try:
            assert contents(open_table(path, sort=True)) == expected
        except ConfigError as error:
            errors.append(str(error))

    assert len(errors) > len(content) / 29 / 2
    assert all(str(copy) in error for error in errors)


def test_a_table_with_a_long_name_has_a_copy(tmp_path: Path, cache: Path) -> None:
    path = mixed(tmp_path / f"{'é' * 120}.parquet")

    assert len({device for device, _ in contents(open_table(path, sort=True))}) == 3
    assert len(list(cache.glob("*.sorted.parquet"))) == 1
