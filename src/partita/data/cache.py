"""Caches: decoded examples in memory, and the names of derived files in the user's cache folder."""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from sys import getsizeof
from typing import Any, ClassVar

from numpy import ndarray
from torch import Tensor

from partita.durable import new_file
from partita.protocol import DeviceId

_MAX_BYTES = 256_000_000
"""The default size of an `ExampleCache`, or of all that processes of one run have together."""
_Key = tuple[DeviceId, str]
"""A device and a split."""
_TENSOR = 600
"""About the bytes of a tensor besides its values: measured, between 540 and 600 with torch 2.13."""
_ENTRY = 400
"""About the bytes of an entry of the cache besides its id and its examples."""


class ExampleCache:
    """A least-recently-used cache of examples, by device and split.

    Decoding a device's examples can take as long as training on them.

    >>> cache = ExampleCache()
    >>> cache.get_or_load(("ada", "train"), lambda: [1, 2])
    [1, 2]
    >>> cache.get_or_load(("ada", "train"), lambda: [3])
    [1, 2]
    """

    processes: ClassVar[int] = 1
    """The number of processes that have such caches of their own, and share the memory for them."""
    limit: ClassVar[int] = _MAX_BYTES
    """The number of bytes that any cache may have, however large it was made."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get_or_load(self, key: _Key, load: Callable[[], Any]) -> Any:
        """Return the cached examples, loading them first if they are not cached (in place)."""
        if key not in self._entries:
            examples = load()
            self._entries[key] = examples, bytes_of((key, examples)) + _ENTRY
            self._bytes += self._entries[key][1]
            most = min(self._max_bytes, self.limit) // self.processes
            while self._bytes > most and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1][1]
        self._entries.move_to_end(key)
        return self._entries[key][0]

    @classmethod
    @contextmanager
    def limited(cls, limit: int) -> Iterator[None]:
        """Let no cache of this process have more bytes in this block, where each device is visited once."""
        before, cls.limit = cls.limit, limit
        try:
            yield
        finally:
            cls.limit = before


def bytes_of(value: Any) -> int:
    """Return the approximate size of examples in memory: tensors, texts, numbers and what contains them.

    Memory that several of them share, such as the storage of two views, counts once.
    """
    return _bytes_of(value, set())


def _bytes_of(value: Any, counted: set[int]) -> int:
    """Return the size of what is not yet counted, and add it to `counted` in place, by address."""
    if id(value) in counted:
        return 0
    counted.add(id(value))
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        is_new = storage.data_ptr() not in counted
        counted.add(storage.data_ptr())
        return _TENSOR + (storage.nbytes() if is_new else 0)
    if isinstance(value, ndarray) and value.base is not None:
        return getsizeof(value) + _bytes_of(value.base, counted)
    return getsizeof(value) + sum(_bytes_of(part, counted) for part in _parts_of(value))


def _parts_of(value: Any) -> Iterable[Any]:
    """Return the objects that a container or a dataclass refers to."""
    if isinstance(value, Mapping):
        return (part for entry in value.items() for part in entry)
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        own = [vars(value)] if hasattr(value, "__dict__") else []
        return [*own, *(getattr(value, field.name) for field in fields(value))]
    return ()


def cache_folder() -> Path:
    """Return the user's cache folder for derived files; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita"


def cache_name(table: Path, *, key: str, suffix: str) -> str:
    """Return the name of a file derived from a table; `key` distinguishes it from others of that table."""
    path_digest = hashlib.sha256(str(table.resolve()).encode()).hexdigest()[:12]
    # A file name has at most 255 bytes.
    name = os.fsencode(table.name)[:100].decode(errors="ignore")
    return f"{name}.{path_digest}.{key}.{suffix}"


def cache_paths(table: Path, *, key: str, suffix: str) -> list[Path]:
    """Return where a small file derived from a table may be: beside it, or in the user's cache folder."""
    table = table.resolve()
    beside = table.with_name(f"{table.name}.{key}.{suffix}")
    return [beside, cache_folder() / cache_name(table, key=key, suffix=suffix)]


def write_to_first(paths: Sequence[Path], write: Callable[[Path], Any], *, mode: int) -> bool:
    """Write a file to the first path where that is possible, and return whether there was one.

    Args:
        paths: the paths.
        write: writes the file to a path.
        mode: who may read it, see `mode_of`.
    """
    for path in paths:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path, mode=mode) as scratch:
                write(scratch)
        except OSError:
            continue
        return True
    return False


def mode_of(files: Sequence[Path]) -> int:
    """Return the permissions of a file derived from others: who may read and write all of them."""
    mode = 0o666
    for file in files:
        mode &= file.stat().st_mode
    return mode | 0o600


def file_states(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Return the name, size and times of each file: they differ after a change.

    Besides the time of modification, which a user can set, there is the one of the last change of any kind.
    """
    stats = [(file.name, file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
