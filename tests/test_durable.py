"""Durable writes: what a file says is on disk before its name does, and before the call returns."""

import fcntl
import os
from pathlib import Path

import pytest

from partita.durable import append_file, locked, make_folder, move_file, replace_file, write_file
from power import recorded


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 1_000_000])
def test_a_file_is_on_disk_when_the_call_returns(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)

    with recorded(tmp_path) as disk:
        write_file(tmp_path / "file", content)

    assert disk.images[-1] == {"file": content}


@pytest.mark.parametrize("size", [1, 4096, 4097])
def test_a_replaced_file_is_the_old_one_or_the_new_one(size: int, tmp_path: Path) -> None:
    with recorded(tmp_path) as disk:
        replace_file(tmp_path / "file", b"old")
        disk.images.clear()
        replace_file(tmp_path / "file", b"n" * size)

    assert {image["file"] for image in disk.images} == {b"old", b"n" * size}
    assert disk.synced() == {"file": b"n" * size}


def test_a_moved_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    with recorded(tmp_path) as disk:
        replace_file(tmp_path / "file", b"old")
        disk.images.clear()
        (tmp_path / "scratch").write_bytes(b"new")
        move_file(tmp_path / "scratch", tmp_path / "file")

    assert {image["file"] for image in disk.images} == {b"old", b"new"}
    assert disk.synced() == {"file": b"new"}


def test_an_appended_line_is_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    with recorded(tmp_path) as disk:
        sizes = [append_file(tmp_path / "lines", line) for line in (b"one\n", b"", b"two\n")]

    assert sizes == [4, 4, 8]
    assert disk.images[-1] == {"lines": b"one\ntwo\n"}


def test_a_new_folder_is_on_disk_with_those_that_it_is_in(tmp_path: Path) -> None:
    with recorded(tmp_path) as disk:
        make_folder(tmp_path / "runs/a/b")
        replace_file(tmp_path / "runs/a/b/file", b"content")
        make_folder(tmp_path / "runs/a/b", exist_ok=True)

    assert disk.synced() == {"runs/a/b/file": b"content"}
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "runs/a/b")


def test_the_lock_of_a_file_that_was_replaced_is_not_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = fcntl.flock, tmp_path / "lock"

    def replaced_before_the_lock(descriptor: int, flags: int) -> None:
        path.unlink()
        path.touch()
        real(descriptor, flags)

    with locked(path) as is_ours:
        assert is_ours
    monkeypatch.setattr(fcntl, "flock", replaced_before_the_lock)
    with locked(path) as is_ours:
        assert not is_ours
