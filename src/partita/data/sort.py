"""Sorting tables by device that are larger than memory: sorted runs on disk, then merged.

A run is as many rows as fit in memory, sorted. Runs are merged a piece of each at a time. Both keep the order
of a device's rows. The order of devices is that of their ids as texts, whatever type the column has.
"""

import hashlib
import json
import logging
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from partita.data.cache import cache_folder, kept_name, state_of
from partita.data.importers.source import Tick
from partita.data.reading import Stream, open_files, pieces
from partita.data.writing import BYTES, TableWriter
from partita.errors import ConfigError

logger = logging.getLogger(__name__)

MEMORY = 256_000_000
"""About how many bytes a sort takes, unless told otherwise."""
_RUNS = 64
"""The most runs that are merged at a time."""
_LONGEST = 1 << 30
"""The most bytes of a run: Arrow's texts may not be longer than twice that."""


def silent(done: int, total: int) -> None:
    """Tell nobody of the progress."""


def sort_table(
    source: Path, out: Path, *, device: str = "device", memory: int = MEMORY, tick: Tick = silent
) -> int:
    """Write the rows of a table to `out`, grouped by device and in the order of ids; return how many.

    The rows of a device keep their order. Columns, types and the schema's metadata stay as they are.

    Args:
        source: a Parquet file, or a folder of them, taken in the order of their names.
        out: the file to write.
        device: the column that says whose a row is: texts, or whatever can be written as one.
        memory: about how many bytes to use at most.
        tick: told of the progress.

    Raises:
        ConfigError: `out` is there already, or the source is missing, not Parquet, or has rows of no device.
    """
    check_new(out)
    if memory < 1:
        raise ConfigError(f"`memory` must be at least 1 byte, got {memory}.")
    files = open_files(source)
    files.need(device)
    files.check_ids(device)
    return sort_stream(files.stream(memory // 16), out, device=device, memory=memory, tick=tick)


def sorted_copy(source: Path, files: Sequence[Path], *, device: str) -> Path:
    """Return a copy of a table, grouped by device, in the user's cache folder, made where it is not there.

    Args:
        source: the table, a file or a folder.
        files: the files that it is made of; a change of one makes the copy another.
        device: the column that says whose a row is.
    """
    key = hashlib.sha256(json.dumps([device, state_of(files)]).encode()).hexdigest()[:12]
    copy = cache_folder() / kept_name(source, of=key, ending="sorted.parquet")
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        logger.warning("`%s` is not grouped by device: sorting it, once, to `%s`.", source, copy)
        scratch = copy.with_name(f"{copy.name}.{os.getpid()}.tmp")
        sort_table(source, scratch, device=device)
        scratch.replace(copy)
    return copy


def sort_stream(
    stream: Stream, out: Path, *, device: str = "device", memory: int = MEMORY, tick: Tick = silent
) -> int:
    """Write rows that come a few at a time to `out`, as `sort_table` does; return how many."""
    check_new(out)
    work = _Work(stream.schema, device, memory)
    progress = _Progress(tick, 2 * stream.rows)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", suffix=".sort", dir=out.parent) as name:
        scratch = Path(name)
        runs = list(work.write_runs(stream.tables, scratch, progress.add))
        while len(runs) > _RUNS:
            progress.total += stream.rows
            runs = work.merge_some(runs, progress.add)
        rows = work.merge_all(runs, scratch / "whole.tmp", progress.add)
        (scratch / "whole.tmp").replace(out)
    return rows


def check_new(out: Path) -> None:
    """Raise a `ConfigError` where `out` cannot be written: it is there already, or its folder is not."""
    if out.exists():
        raise ConfigError(f"`{out}` exists already: give another name, or remove it.")
    if not out.parent.is_dir():
        raise ConfigError(f"There is no folder `{out.parent}` to write `{out.name}` in.")


class _Progress:
    """Adds up how many rows were written, over all passes."""

    def __init__(self, tick: Tick, total: int) -> None:
        self.total = total
        self._tick = tick
        self._done = 0

    def add(self, rows: int) -> None:
        self._done += rows
        self._tick(self._done, self.total)


@dataclass(frozen=True)
class _Work:
    """One sort: what its rows are, and how much memory it may take."""

    schema: pa.Schema
    device: str
    memory: int

    def write_runs(
        self, tables: Iterable[pa.Table], folder: Path, add: Callable[[int], None]
    ) -> Iterator[Path]:
        """Write the rows in sorted runs; yield where each is."""
        # There are up to three of a run at a time: as it came, in one piece, and sorted.
        for number, run in enumerate(_gathered(tables, min(self.memory // 3, _LONGEST))):
            path = folder / f"{number:09}.run"
            self._write(path, [_by_device(run, self.device)], add)
            yield path

    def merge_some(self, runs: Sequence[Path], add: Callable[[int], None]) -> list[Path]:
        """Merge neighboring runs to longer ones and delete what was merged."""
        longer: list[Path] = []
        for begin in range(0, len(runs), _RUNS):
            some = runs[begin : begin + _RUNS]
            path = some[0].with_suffix(f"{some[0].suffix}.merged")
            self._write(path, _merged(some, self.device), add)
            for run in some:
                run.unlink()
            longer.append(path)
        return longer

    def merge_all(self, runs: Sequence[Path], out: Path, add: Callable[[int], None]) -> int:
        """Merge all runs to one Parquet file; return how many rows it has."""
        rows = 0
        with TableWriter(out, self.schema) as writer:
            # The writer gathers whole row groups: larger tables would be in memory twice.
            for table in _gathered(_merged(runs, self.device), BYTES // 4):
                for piece in pieces(table, BYTES):
                    writer.add(piece)
                rows += len(table)
                add(len(table))
        return rows

    def _write(self, path: Path, tables: Iterable[pa.Table], add: Callable[[int], None]) -> None:
        """Write a run in such small pieces that one of each of many runs fits in memory."""
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_stream(file, self.schema, options=options) as writer,
        ):
            nbytes = self.memory // (4 * _RUNS)
            for table in _gathered(tables, nbytes):
                for piece in pieces(table, nbytes):
                    writer.write_table(piece)
                add(len(table))


def _gathered(tables: Iterable[pa.Table], nbytes: int) -> Iterator[pa.Table]:
    """Join tables to larger ones of at least `nbytes`, except the last."""
    waiting: list[pa.Table] = []
    held = 0
    for table in tables:
        waiting.append(table)
        held += table.nbytes
        if held >= nbytes:
            whole = pa.concat_tables(waiting).combine_chunks()
            waiting, held = [], 0
            yield whole
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _by_device(table: pa.Table, device: str) -> pa.Table:
    """Return the rows in the order of ids; those of one id keep their order."""
    order = pc.sort_indices(_texts(table[device]))  # pyright: ignore[reportAttributeAccessIssue]
    return table.take(order)


def _merged(paths: Sequence[Path], device: str) -> Iterator[pa.Table]:
    """Yield the rows of sorted runs in order; for rows of one device, earlier runs come first.

    Each run has one piece in memory. Up to the least of the pieces' last ids nothing is missing: rows of
    lesser ids can be sorted and yielded. The rows of that id itself may go on in further pieces: they are
    taken run by run.
    """
    with ExitStack() as stack:
        runs = [_Run(stack.enter_context(pa.OSFile(str(path), "rb")), device) for path in paths]
        while runs := [run for run in runs if not run.over]:
            least = min(run.last for run in runs)
            if below := [rows for run in runs if len(rows := run.take_below(least))]:
                yield _by_device(pa.concat_tables(below).combine_chunks(), device)
            for run in runs:
                yield from run.take_at(least)


class _Run:
    """What is left of a sorted run: a piece in memory, the rest on disk. Taking rows changes it in place."""

    def __init__(self, file: pa.NativeFile, device: str) -> None:
        self._pieces = pa.ipc.open_stream(file)
        self._device = device
        self._load()

    def _load(self) -> None:
        piece = next(iter(self._pieces), None)
        self._rows = pa.Table.from_batches([] if piece is None else [piece], self._pieces.schema)
        self._ids: list[str] = _texts(self._rows[self._device]).to_pylist()
        self._begin = 0

    @property
    def over(self) -> bool:
        """Whether all rows were taken."""
        return not self._ids

    @property
    def last(self) -> str:
        """The last id of the piece in memory."""
        return self._ids[-1]

    def take_below(self, device: str) -> pa.Table:
        """Take the rows of lesser ids, none of which is the piece's last."""
        return self._take(bisect_left(self._ids, device, self._begin))

    def take_at(self, device: str) -> Iterator[pa.Table]:
        """Take the rows of an id, which is the least there is, on into further pieces."""
        while not self.over and self._ids[self._begin] == device:
            yield self._take(bisect_right(self._ids, device, self._begin))
            if self._begin == len(self._ids):
                self._load()

    def _take(self, end: int) -> pa.Table:
        taken = self._rows.slice(self._begin, end - self._begin)
        self._begin = end
        return taken


def _texts(ids: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(ids.cast(pa.string()).chunks) if ids.num_chunks else pa.array([], pa.string())
