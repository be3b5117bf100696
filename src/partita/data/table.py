"""A Parquet table read by device: its rows are found by an index and read one device at a time."""

import bisect
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partita.data.arrow import Ids
from partita.data.devices import Devices
from partita.data.index import Index, KeptIndex, build_index, in_order
from partita.data.options import TableOptions
from partita.data.rows import Rows
from partita.data.sides import SIDES, Sides, WrongSide
from partita.errors import ConfigError
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

_BATCH = 65_536
_GROUPS = 4
"""Row groups kept at a time: devices that are visited one after the other often stand in one."""
_OPEN = 16
"""Files kept open at a time: what is at the end of each is read when it is opened."""
_LARGE = 64_000_000
"""Bytes of a row group from which reading one device's rows is slow."""


class DeviceTable:
    """A Parquet file, or a folder of them, whose rows are grouped by device.

    Args:
        path: the file or the folder.
        options: how it is read.
        columns: the columns that hold content.

    Raises:
        ConfigError: the table is not there, lacks a column, is not grouped, or has a device without rows.
    """

    def __init__(self, path: Path, options: TableOptions, columns: Sequence[str]) -> None:
        self.path = path
        self.options = options
        self.columns = tuple(columns)
        self.skipped: list[str] = []
        """A text for every bad row that was left out."""
        self._files = _Files(path)
        self._sides = Sides(self._files.schema.names, options)
        self._check_columns()
        self._cache: OrderedDict[tuple[int | str, ...], pa.Table] = OrderedDict()
        index = KeptIndex(path, self._files.paths, options).get(self._whole_index)
        self._index = _chosen(index, options, path)

    def devices(self, examples: Callable[[Rows], Any]) -> Devices:
        """Return the devices; `examples` makes examples of a device's rows on one side, when asked for."""
        return Devices(self.ids, lambda device: _Splits(self.rows_of(device), examples))

    @property
    def ids(self) -> Ids:
        """The devices that are taken."""
        return Ids(self._index.ids)

    def rows_of(self, device: DeviceId, *, content: Sequence[str] = ()) -> dict[str, Rows]:
        """Return a device's rows by side, where it has some, with all content or with some columns of it."""
        ids = self._index.ids
        position = bisect.bisect_left(range(len(ids)), device, key=lambda place: ids[place].as_py())
        start = int(self._index.starts[position])
        names = list(dict.fromkeys([self.options.device, *self._sides.columns, *(content or self.columns)]))
        table = self._read(start, start + int(self._index.counts[position].sum()), names)
        file, first = self._files.place_of(start)
        values = table.select(list(content or self.columns)).to_pylist()
        sides = self._sides.of(table)
        found: dict[str, Rows] = {}
        for code, side in enumerate(SIDES):
            places = np.flatnonzero(sides == code).tolist()
            if side == "train" and self.options.most:
                places = places[: self.options.most]
            if places:
                numbers, chosen = [first + place for place in places], [values[place] for place in places]
                found[side] = Rows(file, device, side, numbers, chosen, self._skip)
        return found

    def largest(self, column: str) -> int:
        """Return the largest whole number in a column of the table."""
        largest = 0
        for file in self._files.paths:
            for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(
                batch_size=_BATCH, columns=[column]
            ):
                values = batch.column(0)
                if not pa.types.is_integer(values.type):
                    raise ConfigError(
                        f"`{column}` of `{self.path}` must be whole numbers, got {values.type}."
                    )
                largest = max(largest, int(pc.call_function("max", [values]).as_py() or 0))
        return largest

    @property
    def _skip(self) -> Callable[[str], None] | None:
        def skip(text: str) -> None:
            if text not in self.skipped:
                self.skipped.append(text)

        return skip if self.options.skip_bad else None

    def _check_columns(self) -> None:
        names = self._files.schema.names
        needed = [self.options.device, self._sides.split, *self.columns]
        needed += [self.options.time] if self._sides.by_time else []
        for name in filter(None, needed):
            if name not in names:
                raise ConfigError(f"`{self.path}` has no column `{name}`, only {', '.join(names)}.")

    def _whole_index(self) -> Index:
        index = build_index(self._batches(), self._sides)
        if len(index.ids.unique()) < len(index.ids):
            twice = next(e["values"] for e in index.ids.value_counts().to_pylist() if e["counts"] > 1)
            raise ConfigError(
                f"The rows of `{self.path}` are not grouped by device, {twice!r} stands in several places: "
                f"`partita import sort {self.path} OUT.parquet` writes a table that is."
            )
        return in_order(index)

    def _batches(self) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yield the ids and the sides of all rows, a batch after the other; by time they come later."""
        names = list(dict.fromkeys([self.options.device, *self._sides.columns]))
        first = 0
        for file in self._files.paths:
            for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(
                batch_size=_BATCH, columns=names
            ):
                rows = pa.Table.from_batches([batch])
                if not len(rows):
                    continue
                ids = self._ids_in(rows, first)
                try:
                    sides = np.zeros(len(rows), int) if self._sides.by_time else self._sides.of(rows)
                except WrongSide as error:
                    device = ids[error.row].as_py()
                    raise self._named(first + error.row, f"device {device!r}: {error}") from None
                yield ids, sides
                first += len(rows)
        if not first:
            raise ConfigError(f"`{self.path}` has no rows.")

    def _ids_in(self, rows: pa.Table, first: int) -> pa.Array:
        column = rows[self.options.device].combine_chunks()
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise self._named(first + row, f"`{self.options.device}` is empty")
        try:
            return column.cast(pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise ConfigError(f"`{self.options.device}` of `{self.path}` must be texts or numbers.") from None

    def _named(self, row: int, what: str) -> ConfigError:
        file, number = self._files.place_of(row)
        return ConfigError(f"`{file}`, row {number}: {what}.")

    def _read(self, begin: int, end: int, names: list[str]) -> pa.Table:
        """Return some rows of the table, from row groups that are kept for a while."""
        begins = self._files.begins
        number = bisect.bisect_right(begins, begin) - 1
        parts: list[pa.Table] = []
        while number < len(begins) and begins[number] < end:
            group = self._group(number, names)
            low, high = max(begin - begins[number], 0), min(end - begins[number], len(group))
            parts.append(group.slice(low, high - low))
            number += 1
        return pa.concat_tables(parts)

    def _group(self, number: int, names: list[str]) -> pa.Table:
        key = (number, *names)
        if key not in self._cache:
            if len(self._cache) == _GROUPS:
                self._cache.popitem(last=False)
            self._cache[key] = self._files.read_group(number, names)
        self._cache.move_to_end(key)
        return self._cache[key]


class _Splits(Mapping[str, Any]):
    """A device's examples by side, made when they are asked for."""

    def __init__(self, rows: Mapping[str, Rows], examples: Callable[[Rows], Any]) -> None:
        self._rows = rows
        self._examples = examples

    def __getitem__(self, side: str) -> Any:
        return self._examples(self._rows[side])

    def __contains__(self, side: object) -> bool:
        return side in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class _Files:
    """The files of a table, and their row groups one after the other."""

    def __init__(self, path: Path) -> None:
        self.paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not self.paths or not self.paths[0].is_file():
            raise ConfigError(f"There is no table `{path}`: neither a Parquet file nor a folder of them.")
        self.begins: list[int] = []
        """The number of the first row of each row group."""
        self._groups: list[tuple[Path, int]] = []
        self._firsts: list[int] = []
        self._open: dict[Path, pq.ParquetFile] = {}
        rows = largest = 0
        for file in self.paths:
            metadata = _metadata_of(file)
            self._firsts.append(rows)
            for number in range(metadata.num_row_groups):
                self.begins.append(rows)
                self._groups.append((file, number))
                rows += metadata.row_group(number).num_rows
                largest = max(largest, metadata.row_group(number).total_byte_size)
        self.schema = pq.read_schema(self.paths[0])
        if largest > _LARGE:
            logger.warning(
                "Row groups of `%s` have up to %d MB, read whole for one device: `partita import sort` "
                "writes small ones.",
                path,
                largest // 1_000_000,
            )

    def place_of(self, row: int) -> tuple[str, int]:
        """Return the file in which a row of the table stands, and its number there."""
        position = bisect.bisect_right(self._firsts, row) - 1
        return self.paths[position].name, row - self._firsts[position]

    def read_group(self, number: int, names: list[str]) -> pa.Table:
        """Read some columns of a row group."""
        file, place = self._groups[number]
        if file not in self._open:
            if len(self._open) == _OPEN:
                self._open.popitem()[1].close()
            self._open[file] = pq.ParquetFile(file)
        return self._open[file].read_row_group(place, columns=names)


def _batches_of(file: Path, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a file, a batch after the other; buffered, they would be read whole at once."""
    return pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=_BATCH, columns=names)


def _metadata_of(file: Path) -> pq.FileMetaData:
    try:
        return pq.read_metadata(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"`{file}` is not a Parquet file: {' '.join(str(error).split())}") from None


def _chosen(index: Index, options: TableOptions, path: Path) -> Index:
    """Return the devices that the options take."""
    for side, least in (("train", options.least_train), ("test", options.least_test)):
        empty = np.flatnonzero(index.on(side) == 0)
        if len(empty) and not least:
            raise ConfigError(
                f"Device {index.ids[int(empty[0])].as_py()!r} of `{path}` has no {side} rows, one of "
                f"{len(empty)} without: `least_{side} = 1` leaves them out."
            )
    index = index.taken((index.on("train") >= options.least_train) & (index.on("test") >= options.least_test))
    if options.devices > len(index.ids) or not len(index.ids):
        raise ConfigError(f"`{path}` has {len(index.ids)} devices to take, fewer than asked for.")
    if not options.devices:
        return index
    digests = [hashlib.sha256(device.encode()).digest() for device in index.ids.to_pylist()]
    mask = np.zeros(len(digests), bool)
    mask[sorted(range(len(digests)), key=digests.__getitem__)[: options.devices]] = True
    return index.taken(mask)


def numeric_columns(path: Path, options: TableOptions, *, besides: str) -> list[str]:
    """Return the columns of numbers that say nothing about whose a row is or on which side."""
    known = {besides, options.device, options.split, "split", options.id, options.group, options.time}
    schema = _Files(path).schema
    numbers = [f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    found = [name for name in numbers if name not in known]
    if not found:
        raise ConfigError(f"`{path}` has no column of numbers besides {', '.join(sorted(known - {''}))}.")
    return found
