"""Writes that survive a crash: a file is either whole and on disk, or not there under its name."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to a new file at `path` and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        sync_file(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one."""
    scratch = path.with_name(f"{path.name}.tmp")
    write_file(scratch, content)
    scratch.replace(path)
    sync_folder(path.parent)


def sync_file(descriptor: int) -> None:
    """Wait until the disk has what was written to the open file `descriptor`."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: renames and deletions included."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock file, or a folder, for a while, and say whether it was free; with `wait`, once it is."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, 0o644)
    try:
        yield _is_locked(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
