"""Durable writes: after a crash a file is either complete or absent under its name."""

import contextlib
import fcntl
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""The mode of a file that only its owner may read; `umask` may take more away."""
_PUBLIC = 0o666


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in errors of the system in this block: those of writing and reading do not name it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_file(path: Path, content: bytes, *, mode: int = _PUBLIC) -> None:
    """Write `content` to a new file at `path` and wait until it is on disk."""
    _write(path, content, os.O_TRUNC, mode)


def write_private(path: Path, *pieces: bytes | memoryview) -> None:
    """Write the pieces of a new file that only its owner may read, and do not wait for the disk."""
    with naming(path), _opened(path, os.O_TRUNC, PRIVATE) as file:
        for piece in pieces:
            file.write(piece)


def append_file(path: Path, content: bytes) -> int:
    """Append `content` to the file at `path`, wait until it is on disk, and return the file's size."""
    return _write(path, content, os.O_APPEND, _PUBLIC)


def _opened(path: Path, flag: int, mode: int) -> BinaryIO:
    """Open a file to be written, created with a mode; `flag` says what becomes of its old content."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, mode)
    return os.fdopen(descriptor, "ab" if flag == os.O_APPEND else "wb")


def _write(path: Path, content: bytes, flag: int, mode: int) -> int:
    with naming(path), _opened(path, flag, mode) as file:
        file.write(content)
        # fsync waits for what the system has: Python's own buffer must be handed over first.
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def replace_file(path: Path, content: bytes, *, mode: int = _PUBLIC) -> None:
    """Replace the file at `path` atomically: a reader, or a crash, sees the old file or the new one."""
    scratch = path.with_name(f"{path.name}.tmp")
    write_file(scratch, content, mode=mode)
    scratch.replace(path)
    sync_folder(path.parent)


def move_file(scratch: Path, path: Path) -> None:
    """Rename a file that was written otherwise to `path`, as `replace_file` does."""
    sync_file(scratch)
    scratch.replace(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def new_file(path: Path, *, mode: int = PRIVATE) -> Iterator[Path]:
    """Yield a new file beside `path` that gets this name at the end, and is deleted after an error.

    Until then only its owner may read it. A file or link that is there already is never written to.

    Args:
        path: the name of the file.
        mode: who may read it at the end.
    """
    remove_unfinished(path)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
    try:
        yield scratch
        scratch.chmod(mode)
        move_file(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Delete the temporary files for `path` of processes that were killed while they wrote them."""
    for scratch in path.parent.glob(f"{glob.escape(path.name)}.*.tmp"):
        process = scratch.name.removeprefix(f"{path.name}.").removesuffix(".tmp")
        if process.isdecimal() and not _is_alive(int(process)):
            scratch.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Create a folder and those that it is in, and wait until their names are on disk.

    Raises:
        FileExistsError: there is a file at `path`, or a folder that is not `exist_ok`.
    """
    if exist_ok and path.is_dir():
        return
    new = [path, *(parent for parent in path.parents if not parent.exists())]
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except BaseException:
        for folder in new[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    for folder in reversed(new):
        sync_folder(folder.parent)


def make_private_folder(path: Path) -> None:
    """Create a folder that only its owner may enter; one that exists already becomes private."""
    make_folder(path, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        path.chmod(0o700)


def make_private_tree(folder: Path) -> None:
    """Let only the owner read what others' code wrote into a folder, and wait until all of it is on disk."""
    for path in folder.iterdir():
        if path.is_dir():
            make_private_tree(path)
        else:
            path.chmod(PRIVATE)
            sync_file(path)
    folder.chmod(0o700)
    sync_folder(folder)


def sync_file(path: Path) -> None:
    """Wait until the content of the file at `path` is on disk."""
    _sync(path)


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk, renames and deletions included."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or folder in this block, and yield whether the lock was free; with `wait`, wait for it.

    The lock of a file or folder that was deleted or replaced meanwhile is not free.
    """
    descriptor = open_lock(path)
    try:
        yield _try_lock(descriptor, wait=wait) and _is_at(path, descriptor)
    finally:
        close_lock(descriptor)


_LOCKS: set[int] = set()
"""The descriptors of this process that locks may be on."""


def open_lock(path: Path) -> int:
    """Open a file, which is created where there is none, or a folder, to be locked; `close_lock` frees it."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, 0o644)
    _LOCKS.add(descriptor)
    return descriptor


def close_lock(descriptor: int) -> None:
    """Close what `open_lock` opened, which frees the lock on it."""
    _LOCKS.discard(descriptor)
    os.close(descriptor)


def leave_locks() -> None:
    """Close all locks in a process that was just forked: those who took them free them, alive or killed."""
    for descriptor in list(_LOCKS):
        close_lock(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _try_lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
