"""Caches: decoded examples in memory, and the names of derived files in the user's cache folder."""

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from sys import getsizeof
from typing import Any, ClassVar

from torch import Tensor

from partita.durable import move_file
from partita.protocol import DeviceId

_MAX_BYTES = 256_000_000
"""The default size of an `ExampleCache`, or of all that processes of one run have together."""
_Key = tuple[DeviceId, str]
"""A device and a split."""


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

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[_Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get_or_load(self, key: _Key, load: Callable[[], Any]) -> Any:
        """Return the cached examples, loading them first if they are not cached (in place)."""
        if key not in self._entries:
            examples = load()
            self._entries[key] = examples, bytes_of(examples)
            self._bytes += self._entries[key][1]
            while self._bytes > self._max_bytes // self.processes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1][1]
        self._entries.move_to_end(key)
        return self._entries[key][0]


def bytes_of(value: Any) -> int:
    """Return the approximate size of examples in bytes: their tensors and the containers around them."""
    if isinstance(value, Tensor):
        return value.nbytes
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
    return getsizeof(value) + sum(map(bytes_of, parts))


def cache_folder() -> Path:
    """Return the user's cache folder for derived files; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "partita"


def cache_name(table: Path, *, key: str, suffix: str) -> str:
    """Return the name of a file derived from a table; `key` distinguishes it from others of that table."""
    path_digest = hashlib.sha256(str(table.resolve()).encode()).hexdigest()[:12]
    return f"{table.name}.{path_digest}.{key}.{suffix}"


def cache_paths(table: Path, *, key: str, suffix: str) -> list[Path]:
    """Return where a small file derived from a table may be: beside it, or in the user's cache folder."""
    table = table.resolve()
    beside = table.with_name(f"{table.name}.{key}.{suffix}")
    return [beside, cache_folder() / cache_name(table, key=key, suffix=suffix)]


def write_to_first(paths: Sequence[Path], write: Callable[[Path], Any]) -> bool:
    """Write a file to the first path where that is possible, and return whether there was one."""
    for path in paths:
        scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(scratch)
            move_file(scratch, path)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            continue
        return True
    return False


def file_states(files: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """Return the name, size and times of each file: they differ after a change.

    Besides the time of modification, which a user can set, there is the one of the last change of any kind.
    """
    stats = [(file.name, file.stat()) for file in files]
    return [(name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats]
