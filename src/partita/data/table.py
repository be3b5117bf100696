"""A Parquet table read by device: its rows are found by an index and read one device at a time."""

import bisect
import json
import re
import shlex
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partita.data.arrow import Ids
from partita.data.chosen import chosen
from partita.data.devices import Devices
from partita.data.groups import Groups
from partita.data.held import Held
from partita.data.ids import check_id, ids_of
from partita.data.index import Index, KeptIndex, build_index, in_order
from partita.data.options import TableOptions
from partita.data.rows import PartlyRead, Rows, WrongRow
from partita.data.sides import SIDES, Sides
from partita.data.skipped import LeftOut, Skipped
from partita.data.sort import sorted_copy
from partita.errors import ConfigError
from partita.protocol import DeviceId

_GROUPS = 4
"""Row groups kept at a time: devices that are visited one after the other often stand in one."""
_CLASSES = 1_000_000
"""The most classes that labels alone can ask for."""


class _NotGrouped(ConfigError):
    """The rows of a device do not stand together."""


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
        self.skipped = Skipped()
        """The bad rows that were left out."""
        self._cache: OrderedDict[tuple[int | str, ...], pa.Table] = OrderedDict()
        try:
            index = self._open(path)
        except _NotGrouped:
            if not options.sort:
                raise
            index = self._open(sorted_copy(path, self._files.paths, device=options.device))
        self._index = chosen(index, self._sides, path, self._alike)

    def _open(self, path: Path) -> Index:
        """Return the index of the table at `path`, which this one is read from."""
        self._files = Groups(path)
        self._sides = Sides(self._files.schema.names, self.options)
        self._check_columns()
        return KeptIndex(path, self._files.paths, self._sides).get(self._whole_index)

    def devices(self, examples: Callable[[Rows], Any]) -> Devices:
        """Return the devices; `examples` makes examples of a device's rows on one side, when asked for.

        Examples of the devices visited last are held: they are made again where they no longer are.
        """
        held = Held()
        return Devices(self.ids, lambda device: _Splits(self, device, examples, held))

    @property
    def ids(self) -> Ids:
        """The devices that are taken."""
        return Ids(self._index.ids)

    def rows_of(self, device: DeviceId, *, content: Sequence[str] = ()) -> dict[str, Rows]:
        """Return a device's rows by side, where it has some, with all content or with some columns of it."""
        position = self._position(device)
        start = int(self._index.starts[position])
        names = list(dict.fromkeys([self.options.device, *self._sides.columns, *(content or self.columns)]))
        try:
            table = self._read(start, start + int(self._index.counts[position].sum()), names)
        except WrongRow as error:
            raise self._named(max(error.row, start), str(error), device) from error
        values = _values(table.select(list(content or self.columns)))
        sides = self._sides.of(table)
        found: dict[str, Rows] = {}
        for code, side in enumerate(SIDES):
            own = np.flatnonzero(sides == code).tolist()
            if side == "train" and self.options.most:
                own = own[: self.options.most]
            if own:
                places = [self._files.place_of(start + row) for row in own]
                found[side] = Rows(device, side, places, [values[row] for row in own], self._skip)
        return found

    def sides_of(self, device: DeviceId) -> list[str]:
        """Return the sides on which a device has rows."""
        counts = self._index.counts[self._position(device)]
        return [side for side, rows in zip(SIDES, counts.tolist(), strict=True) if rows]

    def _position(self, device: DeviceId) -> int:
        ids = self._index.ids
        position = bisect.bisect_left(range(len(ids)), device, key=lambda place: ids[place].as_py())
        if position == len(ids) or ids[position].as_py() != device:
            raise KeyError(device)
        return position

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
            row, device = self._find(column, largest)
            raise self._named(row, f"`{column}` is {largest}: say how many `classes`", device)
        return largest + 1

    def _find(self, column: str, value: int) -> tuple[int, DeviceId]:
        """Return the first row with a value that there is, and whose it is."""
        first = 0
        for rows in self._files.tables([self.options.device, column]):
            row = pc.index(rows[column], pa.scalar(value, rows[column].type)).as_py()
            if row >= 0:
                return first + row, ids_of(rows[self.options.device], self.options.device)[row].as_py()
            first += len(rows)
        raise AssertionError("The value was found before.")

    @property
    def _skip(self) -> Callable[[LeftOut], None] | None:
        return self.skipped.add if self.options.skip_bad else None

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
        check_id(self._files.schema.field(options.device).type, options.device, f"`{self.path}`")
        if wrong := self._sides.check_type(self._files.schema):
            raise ConfigError(f"`{self.path}`: {wrong}.")

    def _alike(self, begin: int, end: int) -> bool:
        """Whether some rows have the same content."""
        keys = self._sides.keys_in(self._read(begin, end, self._sides.keys))
        return len(set(keys)) < len(keys)

    def _whole_index(self) -> Index:
        index = build_index(self._batches(), self._sides)
        if len(index.ids.unique()) < len(index.ids):
            twice = next(e["values"] for e in index.ids.value_counts().to_pylist() if e["counts"] > 1)
            raise _NotGrouped(
                f"The rows of `{self.path}` are not grouped by device, {twice!r} stands in several places: "
                f"`{_sorting(self.path, self.options.device)}` writes a table that is, and `sort = true` "
                "reads a sorted copy."
            )
        return in_order(index)

    def _batches(self) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yield the ids and the sides of all rows, a batch after the other; by time they come later."""
        names = list(dict.fromkeys([self.options.device, *self._sides.columns]))
        first = 0
        for rows in self._files.tables(names):
            try:
                ids = ids_of(rows[self.options.device], self.options.device)
            except WrongRow as error:
                raise self._named(first + error.row, str(error)) from None
            try:
                self._sides.check_full(rows)
                sides = np.zeros(len(rows), int) if self._sides.by_time else self._sides.of(rows)
            except WrongRow as error:
                raise self._named(first + error.row, str(error), ids[error.row].as_py()) from None
            yield ids, sides
            first += len(rows)
        if not first:
            raise ConfigError(f"`{self.path}` has no rows.")

    def _named(self, row: int, what: str, device: DeviceId | None = None) -> ConfigError:
        file, number = self._files.place_of(row)
        whose = "" if device is None else f", device {device!r}"
        return ConfigError(f"`{file}`, row {number}{whose}: {what}.")

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
            self._cache[key] = self._files.read(number, names)
        self._cache.move_to_end(key)
        return self._cache[key]


class _Splits(Mapping[str, Any]):
    """A device's examples by side, made when they are asked for."""

    def __init__(
        self, table: DeviceTable, device: DeviceId, examples: Callable[[Rows], Any], held: Held
    ) -> None:
        self._table = table
        self._device = device
        self._examples = examples
        self._held = held
        self._sides = table.sides_of(device)

    @cached_property
    def _rows(self) -> Mapping[str, Rows]:
        return self._table.rows_of(self._device)

    def __getitem__(self, side: str) -> Any:
        if side not in self._sides:
            raise KeyError(side)
        return self._held.get((self._device, side), lambda: self._examples(self._rows[side]))

    def __contains__(self, side: object) -> bool:
        return side in self._sides

    def __iter__(self) -> Iterator[str]:
        return iter(self._sides)

    def __len__(self) -> int:
        return len(self._sides)


def _values(table: pa.Table) -> Sequence[Mapping[str, Any]]:
    """Return rows by column; of rows that cannot be decoded, what can be."""
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        return [_values_of_one(table.slice(row, 1)) for row in range(len(table))]


def _values_of_one(row: pa.Table) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in row.column_names:
        try:
            values[name] = row[name][0].as_py()
        except UnicodeDecodeError:
            reasons[name] = "is not UTF-8"
        except (ValueError, OverflowError) as error:
            reasons[name] = f"cannot be read, {error}"
    return PartlyRead(values, reasons) if reasons else values


def _sorting(path: Path, device: str) -> str:
    """Return the command that sorts a table."""
    value = device if re.fullmatch(r"\w+", device) else json.dumps(device)
    settings = [] if device == "device" else [f"device={value}"]
    return shlex.join(["partita", "import", "sort", str(path), "OUT.parquet", *settings])
