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
from partita.data.reading import open_files
from partita.data.rows import Place, Rows
from partita.data.sides import SIDES, Sides, WrongSide
from partita.errors import ConfigError
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

_GROUPS = 4
"""Row groups kept at a time: devices that are visited one after the other often stand in one."""
_CLASSES = 1_000_000
"""The most classes that labels alone can ask for."""
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
        self._bad: set[Place] = set()
        self._files = _Files(path)
        self._sides = Sides(self._files.schema.names, options, columns)
        self._check_columns()
        self._cache: OrderedDict[tuple[int | str, ...], pa.Table] = OrderedDict()
        index = KeptIndex(path, self._files.paths, self._sides).get(self._whole_index)
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
        if position == len(ids) or ids[position].as_py() != device:
            raise KeyError(device)
        start = int(self._index.starts[position])
        names = list(dict.fromkeys([self.options.device, *self._sides.columns, *(content or self.columns)]))
        table = self._read(start, start + int(self._index.counts[position].sum()), names)
        values = table.select(list(content or self.columns)).to_pylist()
        sides = self._sides.of(table)
        found: dict[str, Rows] = {}
        for code, side in enumerate(SIDES):
            chosen = np.flatnonzero(sides == code).tolist()
            if side == "train" and self.options.most:
                chosen = chosen[: self.options.most]
            if chosen:
                places = [self._files.place_of(start + row) for row in chosen]
                found[side] = Rows(device, side, places, [values[row] for row in chosen], self._skip)
        return found

    def classes(self, column: str) -> int:
        """Return how many classes there are, from 0 to the largest whole number in a column."""
        largest = 0
        for rows in self._files.tables([column]):
            for values in rows[column].chunks:
                if not pa.types.is_integer(values.type):
                    raise ConfigError(
                        f"`{column}` of `{self.path}` must be whole numbers, got {values.type}."
                    )
                largest = max(largest, int(pc.call_function("max", [values]).as_py() or 0))
        if largest >= _CLASSES:
            raise ConfigError(
                f"The largest `{column}` of `{self.path}` is {largest}: say how many `classes`."
            )
        return largest + 1

    @property
    def _skip(self) -> Callable[[Place, str], None] | None:
        def skip(place: Place, text: str) -> None:
            if place not in self._bad:
                self._bad.add(place)
                self.skipped.append(text)

        return skip if self.options.skip_bad else None

    def _check_columns(self) -> None:
        names = self._files.schema.names
        options = self.options
        needed = [options.device, self._sides.split, options.id, options.group, *self.columns]
        needed += [options.time] if self._sides.by_time else []
        for name in filter(None, needed):
            if name not in names:
                raise ConfigError(f"`{self.path}` has no column `{name}`, only {', '.join(names)}.")
        if self._sides.by_time and (options.group or "group" in names):
            raise ConfigError(f'`{self.path}` has groups, which `split = "time"` cannot keep on one side.')

    def _whole_index(self) -> Index:
        index = build_index(self._batches(), self._sides)
        if len(index.ids.unique()) < len(index.ids):
            column = "" if self.options.device == "device" else f" device={self.options.device}"
            twice = next(e["values"] for e in index.ids.value_counts().to_pylist() if e["counts"] > 1)
            raise ConfigError(
                f"The rows of `{self.path}` are not grouped by device, {twice!r} stands in several places: "
                f"`partita import sort {self.path} OUT.parquet{column}` writes a table that is."
            )
        return in_order(index)

    def _batches(self) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yield the ids and the sides of all rows, a batch after the other; by time they come later."""
        names = list(dict.fromkeys([self.options.device, *self._sides.columns]))
        first = 0
        for rows in self._files.tables(names):
            for name in (self.options.device, *self._sides.full):
                self._check_full(rows[name], name, first)
            ids = self._ids_in(rows)
            try:
                sides = np.zeros(len(rows), int) if self._sides.by_time else self._sides.of(rows)
            except WrongSide as error:
                device = ids[error.row].as_py()
                raise self._named(first + error.row, f"device {device!r}: {error}") from None
            yield ids, sides
            first += len(rows)
        if not first:
            raise ConfigError(f"`{self.path}` has no rows.")

    def _check_full(self, column: pa.ChunkedArray, name: str, first: int) -> None:
        empty = column.combine_chunks().is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        if empty.any():
            raise self._named(first + int(np.flatnonzero(empty)[0]), f"`{name}` is empty")

    def _ids_in(self, rows: pa.Table) -> pa.Array:
        try:
            return rows[self.options.device].combine_chunks().cast(pa.string())
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
        files = open_files(path)
        self.paths = files.paths
        self.schema = files.schema
        self.tables = files.tables
        self.begins: list[int] = []
        """The number of the first row of each row group."""
        self._groups: list[tuple[Path, int]] = []
        self._firsts: list[int] = []
        self._open: dict[Path, pq.ParquetFile] = {}
        rows = largest = 0
        for file in self.paths:
            metadata = pq.read_metadata(file)
            self._firsts.append(rows)
            for number in range(metadata.num_row_groups):
                self.begins.append(rows)
                self._groups.append((file, number))
                rows += metadata.row_group(number).num_rows
                largest = max(largest, metadata.row_group(number).total_byte_size)
        if largest > _LARGE:
            logger.warning(
                "Row groups of `%s` have up to %d MB, read whole for one device: `partita import sort` "
                "writes small ones.",
                path,
                largest // 1_000_000,
            )

    def place_of(self, row: int) -> Place:
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
    if not len(index.ids):
        raise ConfigError(f"No device of `{path}` has as many rows as asked for.")
    if options.devices > len(index.ids):
        raise ConfigError(f"`{path}` has {len(index.ids)} devices to take, fewer than `devices`.")
    if not options.devices:
        return index
    digests = [hashlib.sha256(device.encode()).digest() for device in index.ids.to_pylist()]
    mask = np.zeros(len(digests), bool)
    mask[sorted(range(len(digests)), key=digests.__getitem__)[: options.devices]] = True
    return index.taken(mask)


def numeric_columns(path: Path, options: TableOptions, *, besides: str) -> list[str]:
    """Return the columns of numbers that say nothing about whose a row is or on which side."""
    known = {besides, options.device, options.split, "split", options.id or "id", options.group or "group"}
    known |= {options.time} if options.split == "time" else set()
    schema = open_files(path).schema
    numbers = [f.name for f in schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    found = [name for name in numbers if name not in known]
    if not found:
        raise ConfigError(f"`{path}` has no column of numbers besides {', '.join(sorted(known - {''}))}.")
    return found
