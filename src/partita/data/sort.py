"""Sorting a table by device with an external merge sort: sorted runs on disk, then merged.

A run is as many rows as fit in memory, sorted. Runs are merged with one chunk of each in memory. Both steps
are stable: the rows of a device keep their order. Devices are ordered by their ids as strings, whatever the
type of the column.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from partita.data.cache import mode_of
from partita.data.files import ParquetFiles, TableStream, open_files
from partita.data.writing import (
    BYTES,
    SCRATCH,
    ProgressFn,
    TableWriter,
    check_new,
    clear,
    importing,
    no_progress,
    publish,
)
from partita.durable import naming
from partita.errors import ConfigError

MEMORY = 256_000_000
"""The default memory of a sort, in bytes."""
_MAX_RUNS = 64
"""The maximum number of runs that are merged at once."""
_MAX_RUN_BYTES = 1 << 30
"""The maximum size of a run: an Arrow array of strings holds at most twice as many bytes."""


def sort_table(
    source: Path,
    out: Path,
    *,
    device: str = "device",
    memory: int = MEMORY,
    progress: ProgressFn = no_progress,
) -> int:
    """Write a table's rows to `out`, sorted by device id, and return the number of rows.

    The rows of a device keep their order. Columns, types and the schema's metadata do not change. The file
    has the permissions of the source.

    Args:
        source: a Parquet file, or a folder of them, read in the order of their names.
        out: the file to write.
        device: the column of device ids: strings, or any type that can be cast to strings.
        memory: about the maximum number of bytes to use.
        progress: the progress callback.

    Raises:
        ConfigError: `out` exists, or the source is missing, is not Parquet, or has rows without a device id.
    """
    check_new(out)
    if memory < 1:
        raise ConfigError(f"`memory` must be at least 1 byte, got {memory}.")
    files = files_to_sort(source, device)
    stream, mode = files.stream(memory // 16), mode_of(files.paths)
    return sort_stream(stream, out, device=device, memory=memory, progress=progress, mode=mode)


def files_to_sort(source: Path, device: str) -> ParquetFiles:
    """Return the files of a table whose rows all have a device id in the column `device`.

    Raises:
        ConfigError: the source is missing, is not Parquet, or has rows without a device id.
    """
    files = open_files(source)
    files.require_column(device)
    files.check_ids(device)
    return files


def sort_stream(
    stream: TableStream,
    out: Path,
    *,
    device: str = "device",
    memory: int = MEMORY,
    progress: ProgressFn = no_progress,
    mode: int | None = None,
) -> int:
    """Write the rows of a stream to `out`, as `sort_table` does, and return their number.

    With a `mode`, the new file has these permissions.
    """
    sorter = _Sorter(stream.schema, device, memory)
    written = _RowsWritten(progress, 2 * stream.rows)
    with importing(out) as folder:
        clear(folder)
        runs = list(sorter.write_runs(stream.tables, folder, written.add))
        while len(runs) > _MAX_RUNS:
            written.total += stream.rows
            runs = sorter.merge_some(runs, written.add)
        whole = folder / f"whole{SCRATCH}"
        rows = sorter.merge_all(runs, whole, written.add)
        publish(whole, out, mode)
    return rows


class _RowsWritten:
    """The number of rows written over all passes, passed on to a progress callback."""

    def __init__(self, progress: ProgressFn, total: int) -> None:
        self.total = total
        self._progress = progress
        self._done = 0

    def add(self, rows: int) -> None:
        """Add rows in place and call the progress callback."""
        self._done += rows
        self._progress(self._done, self.total)


@dataclass(frozen=True)
class _Sorter:
    """The steps of one external merge sort."""

    schema: pa.Schema
    device: str
    memory: int

    def write_runs(
        self, tables: Iterable[pa.Table], folder: Path, add: Callable[[int], None]
    ) -> Iterator[Path]:
        """Write the rows in sorted runs, and yield the path of each."""
        # Up to three copies of a run are in memory: as it was read, as one table, and sorted.
        for number, run in enumerate(_gather(tables, min(self.memory // 3, _MAX_RUN_BYTES))):
            path = folder / f"run-{number:09}{SCRATCH}"
            self._write_run(path, [_sort_by_device(run, self.device)], add)
            yield path

    def merge_some(self, runs: Sequence[Path], add: Callable[[int], None]) -> list[Path]:
        """Merge neighboring runs into longer ones, delete the merged ones and return the longer ones."""
        longer: list[Path] = []
        for begin in range(0, len(runs), _MAX_RUNS):
            some = runs[begin : begin + _MAX_RUNS]
            path = some[0].with_name(f"merged-{some[0].name}")
            self._write_run(path, _merge(some, self.device), add)
            for run in some:
                run.unlink()
            longer.append(path)
        return longer

    def merge_all(self, runs: Sequence[Path], out: Path, add: Callable[[int], None]) -> int:
        """Merge all runs into one Parquet file, and return its number of rows."""
        rows = 0
        with TableWriter(out, self.schema) as writer:
            # The writer gathers whole row groups: larger tables would be in memory twice.
            for table in _gather(_merge(runs, self.device), BYTES // 4):
                for chunk in chunks(table, BYTES):
                    writer.add(chunk)
                rows += len(table)
                add(len(table))
        return rows

    def _write_run(self, path: Path, tables: Iterable[pa.Table], add: Callable[[int], None]) -> None:
        """Write a run in chunks so small that one chunk of each run fits in memory."""
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            naming(path),
            pa.OSFile(str(path), "wb") as file,
            pa.ipc.new_stream(file, self.schema, options=options) as writer,
        ):
            nbytes = self.memory // (4 * _MAX_RUNS)
            for table in _gather(tables, nbytes):
                for chunk in chunks(table, nbytes):
                    writer.write_table(chunk)
                add(len(table))


def chunks(table: pa.Table, nbytes: int) -> Iterator[pa.Table]:
    """Yield a table's rows in chunks of at most `nbytes`, or of one row if that is larger."""
    if len(table) > 1 and table.nbytes > nbytes:
        half = len(table) // 2
        yield from chunks(table.slice(0, half), nbytes)
        yield from chunks(table.slice(half), nbytes)
    elif len(table):
        yield table


def _gather(tables: Iterable[pa.Table], nbytes: int) -> Iterator[pa.Table]:
    """Yield tables joined into larger ones of at least `nbytes`, except the last."""
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        pending.append(table)
        size += table.nbytes
        if size >= nbytes:
            whole = pa.concat_tables(pending).combine_chunks()
            pending, size = [], 0
            yield whole
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _sort_by_device(table: pa.Table, device: str) -> pa.Table:
    """Return the rows sorted by device id; the sort is stable."""
    order = pc.sort_indices(_strings(table[device]))  # pyright: ignore[reportAttributeAccessIssue]
    return table.take(order)


def _merge(paths: Sequence[Path], device: str) -> Iterator[pa.Table]:
    """Yield the rows of sorted runs in order; for rows of one device, earlier runs come first.

    Each run has one chunk in memory. Take the smallest of the chunks' last ids: all rows with smaller ids are
    in memory, and can be sorted and yielded. Rows with that id itself may continue in further chunks: they
    are taken run by run.
    """
    with ExitStack() as stack:
        runs = [_Run(stack.enter_context(pa.OSFile(str(path), "rb")), device) for path in paths]
        while runs := [run for run in runs if not run.is_empty]:
            smallest = min(run.last_id for run in runs)
            if below := [rows for run in runs if len(rows := run.take_below(smallest))]:
                yield _sort_by_device(pa.concat_tables(below).combine_chunks(), device)
            for run in runs:
                yield from run.take_equal(smallest)


class _Run:
    """The remaining rows of a sorted run: one chunk in memory, the others on disk."""

    def __init__(self, file: pa.NativeFile, device: str) -> None:
        self._chunks = pa.ipc.open_stream(file)
        self._device = device
        self._load()

    def _load(self) -> None:
        """Read the next chunk, in place."""
        chunk = next(iter(self._chunks), None)
        self._rows = pa.Table.from_batches([] if chunk is None else [chunk], self._chunks.schema)
        self._ids: list[str] = _strings(self._rows[self._device]).to_pylist()
        self._begin = 0

    @property
    def is_empty(self) -> bool:
        """Whether all rows have been taken."""
        return not self._ids

    @property
    def last_id(self) -> str:
        """The last id of the chunk in memory."""
        return self._ids[-1]

    def take_below(self, device: str) -> pa.Table:
        """Remove, in place, and return the rows with ids below `device`, which is at most `last_id`."""
        return self._take(bisect_left(self._ids, device, self._begin))

    def take_equal(self, device: str) -> Iterator[pa.Table]:
        """Remove, in place, and yield all rows of `device`, the smallest id left, from further chunks too."""
        while not self.is_empty and self._ids[self._begin] == device:
            yield self._take(bisect_right(self._ids, device, self._begin))
            if self._begin == len(self._ids):
                self._load()

    def _take(self, end: int) -> pa.Table:
        taken = self._rows.slice(self._begin, end - self._begin)
        self._begin = end
        return taken


def _strings(ids: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(ids.cast(pa.string()).chunks) if ids.num_chunks else pa.array([], pa.string())
