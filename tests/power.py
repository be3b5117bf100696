"""A power loss at any moment, simulated: of a folder, only what was fsynced is certain to be on disk.

The recorder reads files back through the system at each fsync, so it sees what was really written by then,
by Python or by a library, and not what is still in a buffer of the process.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

Image = dict[str, bytes]
"""The files on disk after a power loss, by their paths in the folder."""


@dataclass(frozen=True)
class _Names:
    """The entries of a folder: inodes of files, and of folders."""

    files: dict[str, int]
    folders: dict[str, int]


class Disk:
    """The disk under a folder, recorded while `os.fsync` and `os.replace` are called."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images: list[Image] = []
        """What may be on disk at the moments before and after each call."""
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, _Names] = {}
        self._open: list[int] = []

    def fsync(self, descriptor: int) -> None:
        """Record what a file or a folder has at this moment."""
        self.snap()
        self._open.append(os.dup(descriptor))  # Its inode is not given to another file.
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _names(descriptor)
        else:
            self._contents[status.st_ino] = Path(f"/dev/fd/{descriptor}").read_bytes()
        self.snap()

    def snap(self) -> None:
        """Keep the two extremes: names as last synced, or as they are now, each with synced contents."""
        self._keep(self.synced())
        self._keep(dict(self._current()))

    def renamed(self, path: Path) -> None:
        """Keep a third extreme: of all names that are not synced, only that of a renamed file is on disk."""
        name, inode = str(path.relative_to(self.root)), path.stat().st_ino
        self._keep({**self.synced(), name: self._contents.get(inode, b"")})
        self.snap()

    def _keep(self, image: Image) -> None:
        if image not in self.images:
            self.images.append(image)

    def synced(self) -> Image:
        """Return what is certain to be on disk: synced names with synced contents."""
        return dict(self._synced(self.root.stat().st_ino, ""))

    def _synced(self, folder: int, path: str) -> Iterator[tuple[str, bytes]]:
        names = self._names.get(folder, _Names({}, {}))
        for name, inode in names.files.items():
            yield f"{path}{name}", self._contents.get(inode, b"")
        for name, inode in names.folders.items():
            yield from self._synced(inode, f"{path}{name}/")

    def _current(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self.root.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(self.root)), self._contents.get(path.stat().st_ino, b"")

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)


def _names(folder: int) -> _Names:
    entries = list(os.scandir(folder))
    files = {entry.name: entry.inode() for entry in entries if entry.is_file()}
    return _Names(files, {entry.name: entry.inode() for entry in entries if entry.is_dir()})


@contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Record the disk under a folder in this block."""
    disk, replace = Disk(root), os.replace

    def replaced(scratch: Any, path: Any) -> None:
        replace(scratch, path)
        disk.renamed(Path(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        patch.setattr(os, "replace", replaced)
        try:
            yield disk
        finally:
            disk.close()


def restored(image: Image, folder: Path) -> Path:
    """Write the files of an image to a new folder, and return it."""
    folder.mkdir()
    for name, content in image.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
