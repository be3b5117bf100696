"""Writes that survive a crash: a file is either whole and on disk, or not there under its name."""

import os
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
