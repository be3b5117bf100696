"""Sorted copies of tables in the user's cache folder, which `sort = true` reads.

The last column of a copy has the number of each row in the table, so that an error names the row there.

A table that changes gets a new copy. The copy before it, and what a killed process has left of one, are
deleted when the next copy is made, unless a process still uses them: it holds a lock.
"""

import fcntl
import glob
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from partita.data.cache import cache_folder, cache_name, file_states, mode_of
from partita.data.files import TableStream
from partita.data.sort import MEMORY, files_to_sort, sort_stream
from partita.data.writing import remove_abandoned
from partita.durable import locked, remove_unfinished

logger = logging.getLogger(__name__)

_SUFFIX = "sorted.parquet"
_FORMAT = 2
"""Another number makes other copies: the first ones had no numbers of rows."""
_NUMBER = "row"
_IN_USE: dict[Path, int] = {}
"""The copies that this process reads, and the descriptors that their locks are on, until it ends."""


def ensure_sorted_copy(source: Path, files: Sequence[Path], *, device: str) -> Path:
    """Write a copy of a table sorted by device to the user's cache folder, unless it exists; return its path.

    Args:
        source: the table, a file or a folder.
        files: the files that it consists of; a change of one makes another copy.
        device: the column of device ids.
    """
    column, state = _digest(device), _digest([_FORMAT, file_states(files)])
    copy = cache_folder() / cache_name(source, key=f"{column}-{state}", suffix=_SUFFIX)
    copy.parent.mkdir(parents=True, exist_ok=True)
    # One at a time: other processes wait for the copy instead of making it too.
    with locked(cache_folder() / f".{cache_name(source, key=column, suffix='lock')}", wait=True):
        if not copy.exists():
            _remove_others(source, copy, column)
            logger.warning("`%s` is not grouped by device: sorting it, once, to `%s`.", source, copy)
            opened = files_to_sort(source, device)
            stream = _numbered(opened.stream(MEMORY // 16))
            sort_stream(stream, copy, device=device, mode=mode_of(opened.paths))
        _use(copy)
    return copy


def _numbered(stream: TableStream) -> TableStream:
    """Return a stream with another column at its end, the number of each row from 0."""
    name = _NUMBER
    while name in stream.schema.names:
        name += "_"
    return TableStream(
        stream.schema.append(pa.field(name, pa.int64())), stream.rows, _with_numbers(stream, name)
    )


def _with_numbers(stream: TableStream, name: str) -> Iterator[pa.Table]:
    first = 0
    for table in stream.tables:
        yield table.append_column(name, pa.array(np.arange(first, first + len(table))))
        first += len(table)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def _use(copy: Path) -> None:
    """Lock a copy, shared with others, as long as this process lives."""
    if copy not in _IN_USE:
        _IN_USE[copy] = os.open(copy, os.O_RDONLY)
        fcntl.flock(_IN_USE[copy], fcntl.LOCK_SH)


def _remove_others(source: Path, copy: Path, column: str) -> None:
    """Delete copies of earlier states of a table, sorted by the same column, and what is left of any copy."""
    remove_unfinished(copy)
    name = glob.escape(cache_name(source, key="", suffix="").rstrip("."))
    for path in cache_folder().glob(f"{name}.*{_SUFFIX}*"):
        key = path.name.removeprefix(cache_name(source, key="", suffix="").rstrip(".") + ".").partition(".")[
            0
        ]
        if path.is_dir():
            remove_abandoned(path)
        elif path.name.endswith(".tmp"):
            remove_unfinished(path.with_name(re.sub(r"\.[0-9]+\.tmp$", "", path.name)))
        elif key.startswith(f"{column}-") or "-" not in key:  # Without it, of an earlier version of Partita.
            _remove_unused(path)


def _remove_unused(path: Path) -> None:
    with suppress(FileNotFoundError), locked(path) as is_free:
        if is_free:
            path.unlink()
