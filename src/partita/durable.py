"""Durable writes: after a crash a file is either complete or absent under its name."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write `content` to a new file at `path` and wait until it is on disk."""
    with path.open("wb") as file:
        file.write(content)
        sync_file(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at `path` atomically: a reader, or a crash, sees the old file or the new one."""
    scratch = path.with_name(f"{path.name}.tmp")
    write_file(scratch, content)
    scratch.replace(path)
    sync_folder(path.parent)


def sync_file(descriptor: int) -> None:
    """Wait until the data of the open file `descriptor` is on disk."""
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk, renames and deletions included."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or folder in this block, and yield whether the lock was free; with `wait`, wait for it."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, 0o644)
    try:
        yield _try_lock(descriptor, wait=wait)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
