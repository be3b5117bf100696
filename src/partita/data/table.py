"""A Parquet table read by device: an index locates the rows, which are read one device at a time."""

import bisect
import json
import logging
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partita.data.arrow import Ids, check_id_type, first_repeated, id_strings
from partita.data.cache import ExampleCache
from partita.data.devices import Devices
from partita.data.files import RowGroups
from partita.data.index import Batch, Index, IndexCache, build_index, select_devices, sort_index
from partita.data.options import TableOptions
from partita.data.rows import PartialRow, RowError, Rows, SkippedRow, SkippedRows
from partita.data.sort import ensure_sorted_copy
from partita.data.splits import SPLITS, SplitRule, hold_out_by_device
from partita.data.unseen import divide, is_unseen
from partita.errors import ConfigError
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

_MAX_CLASSES = 1_000_000
"""The maximum number of classes inferred from labels."""
_ROWS_AT_A_TIME = 65_536
"""Training rows that `training_tables` reads at a time, unless a device has more."""


class _NotGrouped(ConfigError):
    """A table whose rows are not grouped by device."""


class DeviceTable:
    """A Parquet file, or a folder of them, whose rows are grouped by device.

    Args:
        path: the file or the folder.
        options: how it is read.
        columns: the columns of content.
        unseen: the share of devices that nothing is derived from, see `data.unseen`.

    Raises:
        ConfigError: the table is missing, lacks a column, is not grouped, or has a device without rows.
        ValueError: all or none of the devices are unseen.
    """

    def __init__(
        self, path: Path, options: TableOptions, columns: Sequence[str], *, unseen: float = 0.0
    ) -> None:
        self.path = path
        self.options = options
        self.columns = tuple(columns)
        self.unseen = unseen
        self.skipped = SkippedRows()
        """The bad rows that were skipped."""
        try:
            index = self._open(path)
        except _NotGrouped:
            if not options.sort:
                raise
            index = self._open(ensure_sorted_copy(path, self._groups.paths, device=options.device))
        self._index = select_devices(index, self._rule, path, self._have_same_content)
        self._all = index if unseen else self._index
        self.seen_ids = divide(self.ids, unseen)[0]
        """The ids of the selected devices without the unseen ones."""

    def _open(self, path: Path) -> Index:
        """Open the table at `path`, in place, and return its index, which is built and cached if needed."""
        self._groups = RowGroups(path)
        self._rule = SplitRule(self._groups.schema.names, self.options)
        self._check_columns()
        cache = IndexCache(path, self._groups.paths, self._rule)
        index = cache.load()
        if index is None:
            index = self._build_index()
            cache.save(index)
        return index

    def devices(self, examples: Callable[[Rows], Any]) -> Devices:
        """Return the devices; `examples` makes examples of the rows of one split of a device, on access.

        The examples of recently visited devices are cached in memory.
        """
        cache = ExampleCache()
        return Devices(
            self.ids, lambda device: _DeviceSplits(self, device, examples, cache), self._max_examples
        )

    def _max_examples(self) -> int:
        """Return the number of training rows of the largest device."""
        rows = int(self._index.counts_in("train").max())
        return min(rows, self.options.max_examples) if self.options.max_examples else rows

    @cached_property
    def ids(self) -> Ids:
        """The ids of the selected devices."""
        return Ids(self._index.ids)

    def rows_of(self, device: DeviceId, *, columns: Sequence[str] = ()) -> dict[str, Rows]:
        """Return a device's rows by split, without empty splits, with all content or some columns of it."""
        position = self._position(device)
        start = int(self._index.starts[position])
        content = list(columns or self.columns)
        table = self._read(start, start + int(self._index.counts[position].sum()), content, device)
        values = _decode(table.select(content))
        splits = self._rule.assign(table)
        found: dict[str, Rows] = {}
        for code, split in enumerate(SPLITS):
            rows = np.flatnonzero(splits == code).tolist()
            if split == "train" and self.options.max_examples:
                rows = rows[: self.options.max_examples]
            if rows:
                locations = [self._groups.locate(start + row) for row in rows]
                found[split] = Rows(device, split, locations, [values[row] for row in rows], self._skip)
        return found

    def training_tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of the training rows of all seen devices, many rows at a time.

        The tables are the same as those of a file without the rows of unseen devices.
        """
        index = self._index.select(self._is_seen(self._index.ids)) if self.unseen else self._index
        order = np.argsort(index.starts)
        starts, rows = index.starts[order], index.counts.sum(axis=1)[order]
        begins = starts - self._unseen_rows_before(starts)
        ends = begins + rows
        first = 0
        for last in range(1, len(order) + 1):
            is_adjacent = last < len(order) and begins[last] == ends[last - 1]
            if not is_adjacent or ends[last] - begins[first] > _ROWS_AT_A_TIME:
                table = self._read_devices(starts[first:last], rows[first:last], columns)
                yield table.filter(self._is_training(table, rows[first:last])).select(list(columns))
                first = last

    def _is_seen(self, ids: pa.Array) -> np.ndarray:
        return np.array([not is_unseen(device.as_py(), self.unseen) for device in ids], bool)

    def _unseen_rows_before(self, starts: np.ndarray) -> np.ndarray:
        """Return the number of rows of unseen devices, selected or not, before each row number."""
        if not self.unseen:
            return np.zeros_like(starts)
        unseen = self._all.select(~self._is_seen(self._all.ids))
        order = np.argsort(unseen.starts)
        before = np.append(0, np.cumsum(unseen.counts.sum(axis=1)[order]))
        return before[np.searchsorted(unseen.starts[order], starts)]

    def _read_devices(self, starts: np.ndarray, rows: np.ndarray, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the rows of devices, given by their first rows and their numbers of rows."""
        begin, end = int(starts[0]), int(starts[-1] + rows[-1])
        table = self._read(begin, end, columns)
        if end - begin == rows.sum():
            return table
        own = [np.arange(first, first + count) for first, count in zip(starts - begin, rows, strict=True)]
        return table.take(pa.array(np.concatenate(own)))

    def _is_training(self, table: pa.Table, rows: np.ndarray) -> pa.Array:
        """Return whether each row is a training row; `rows` has the number of rows of each device."""
        rule, begins = self._rule, np.cumsum(rows) - rows
        if rule.by_time:
            devices = zip(begins.tolist(), rows.tolist(), strict=True)
            splits = np.concatenate([rule.assign(table.slice(begin, count)) for begin, count in devices])
        else:
            drawn, order = rule.draw(table)
            splits = hold_out_by_device(drawn, order, begins, self.options.validation)
        is_training = splits == SPLITS.index("train")
        if self.options.max_examples:
            counted = np.cumsum(is_training)
            before = np.repeat(np.append(0, counted)[begins], rows)
            is_training &= counted - before <= self.options.max_examples
        return pa.array(is_training)

    def _read(self, begin: int, end: int, columns: Sequence[str], device: DeviceId | None = None) -> pa.Table:
        """Return some columns of the rows from `begin` up to `end`, and those that their splits need."""
        names = list(dict.fromkeys([self.options.device, *self._rule.columns, *columns]))
        try:
            return self._groups.read(begin, end, names)
        except RowError as error:
            raise self._error(max(error.row, begin), str(error), device) from error

    def splits_of(self, device: DeviceId) -> list[str]:
        """Return the splits in which a device has rows."""
        counts = self._index.counts[self._position(device)]
        return [split for split, rows in zip(SPLITS, counts.tolist(), strict=True) if rows]

    def _position(self, device: DeviceId) -> int:
        ids = self._index.ids
        position = bisect.bisect_left(range(len(ids)), device, key=lambda number: ids[number].as_py())
        if position == len(ids) or ids[position].as_py() != device:
            raise KeyError(device)
        return position

    def classes(self, column: str) -> int:
        """Return the number of classes in a column of labels: one more than the largest label.

        Raises:
            ConfigError: a label is not a whole number or too large, or only unseen devices have it.
        """
        kind = self._groups.schema.field(column).type
        if not pa.types.is_integer(kind):
            raise ConfigError(f"`{column}` of `{self.path}` must be whole numbers, got {kind}.")
        seen, unseen = self._largest(column)
        largest = max(seen, unseen)
        if largest >= _MAX_CLASSES or (largest > seen and not self.options.skip_bad):
            row, device = self._find(column, largest)
            message = f"`{column}` is {largest}: set `classes` to the number of classes"
            if largest < _MAX_CLASSES:
                message = f"`{column}` is {largest}, which no device in training has: set `classes`"
            raise self._error(row, message, device)
        return seen + 1

    def _largest(self, column: str) -> tuple[int, int]:
        """Return the largest value in a column of seen devices and of unseen ones, selected or not."""
        found = {True: 0, False: 0}
        for rows in self._groups.tables([self.options.device, column] if self.unseen else [column]):
            parts = {True: rows}
            if self.unseen:
                ids = id_strings(rows[self.options.device], self.options.device).dictionary_encode()
                is_seen = self._is_seen(ids.dictionary)[ids.indices.to_numpy()]
                parts = {True: rows.filter(pa.array(is_seen)), False: rows.filter(pa.array(~is_seen))}
            for seen, part in parts.items():
                largest = pc.call_function("max", [part[column]]).as_py()
                found[seen] = max(found[seen], int(largest or 0))
        return found[True], found[False]

    def _find(self, column: str, value: int) -> tuple[int, DeviceId]:
        """Return the first row with an existing value, and its device."""
        first = 0
        for rows in self._groups.tables([self.options.device, column]):
            row = pc.index(rows[column], pa.scalar(value, rows[column].type)).as_py()
            if row >= 0:
                return first + row, id_strings(rows[self.options.device], self.options.device)[row].as_py()
            first += len(rows)
        raise AssertionError("The value was found before.")

    @property
    def _skip(self) -> Callable[[SkippedRow], None] | None:
        return self.skipped.add if self.options.skip_bad else None

    def _check_columns(self) -> None:
        names = self._groups.schema.names
        options = self.options
        needed = [options.device, self._rule.split_column, options.id, options.group, *self.columns]
        needed += [options.time] if self._rule.by_time else []
        for name in filter(None, needed):
            if name not in names:
                raise ConfigError(f"`{self.path}` has no column `{name}`. Its columns: {', '.join(names)}.")
        if self._rule.by_time and (options.group or "group" in names):
            raise ConfigError(f'`{self.path}` has groups, which `split = "time"` cannot keep in one split.')
        check_id_type(self._groups.schema.field(options.device).type, options.device, f"`{self.path}`")
        if wrong := self._rule.wrong_type(self._groups.schema):
            raise ConfigError(f"`{self.path}`: {wrong}.")

    def _have_same_content(self, begin: int, end: int) -> bool:
        """Return whether any two rows between two row numbers have the same content."""
        keys = self._rule.row_keys(self._groups.read(begin, end, self._rule.key_columns))
        return len(set(keys)) < len(keys)

    def _build_index(self) -> Index:
        index = build_index(self._batches(), self._rule)
        if (device := first_repeated(index.ids)) is not None:
            raise _NotGrouped(
                f"The rows of `{self.path}` are not grouped by device, those of {device!r} are in several "
                f"places: `{_sort_command(self.path, self.options.device)}` writes a sorted table, and "
                "`sort = true` reads a sorted copy."
            )
        return sort_index(index)

    def _batches(self) -> Iterator[Batch]:
        """Yield the ids and the splits of all rows, batch by batch; by time, 0 stands for each split."""
        names = list(dict.fromkeys([self.options.device, *self._rule.columns]))
        first = 0
        for rows in self._groups.tables(names):
            try:
                ids = id_strings(rows[self.options.device], self.options.device)
            except RowError as error:
                raise self._error(first + error.row, str(error)) from None
            try:
                self._rule.check_complete(rows)
                unknown = np.zeros(len(rows), int)
                splits, order = (unknown, unknown) if self._rule.by_time else self._rule.draw(rows)
            except RowError as error:
                raise self._error(first + error.row, str(error), ids[error.row].as_py()) from None
            yield ids, splits, order
            first += len(rows)
        if not first:
            raise ConfigError(f"`{self.path}` has no rows.")

    def _error(self, row: int, message: str, device: DeviceId | None = None) -> ConfigError:
        """Return an error with the location of a row."""
        file, number = self._groups.locate(row)
        of_device = "" if device is None else f", device {device!r}"
        return ConfigError(f"`{file}`, row {number}{of_device}: {message}.")


class _DeviceSplits(Mapping[str, Any]):
    """A device's examples by split, made on access."""

    def __init__(
        self, table: DeviceTable, device: DeviceId, examples: Callable[[Rows], Any], cache: ExampleCache
    ) -> None:
        self._table = table
        self._device = device
        self._examples = examples
        self._cache = cache
        self._splits = table.splits_of(device)

    @cached_property
    def _rows(self) -> Mapping[str, Rows]:
        return self._table.rows_of(self._device)

    def __getitem__(self, split: str) -> Any:
        if split not in self._splits:
            raise KeyError(split)
        return self._cache.get_or_load((self._device, split), lambda: self._examples(self._rows[split]))

    def __contains__(self, split: object) -> bool:
        return split in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)


def _decode(table: pa.Table) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a table by column; rows that cannot be decoded are partial."""
    try:
        return table.to_pylist()
    except (ValueError, OverflowError):
        return [_decode_row(table.slice(row, 1)) for row in range(len(table))]


def _decode_row(row: pa.Table) -> Mapping[str, Any]:
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name in row.column_names:
        try:
            values[name] = row[name][0].as_py()
        except UnicodeDecodeError:
            reasons[name] = "is not UTF-8"
        except (ValueError, OverflowError) as error:
            reasons[name] = f"cannot be read, {error}"
    return PartialRow(values, reasons) if reasons else values


def _sort_command(path: Path, device: str) -> str:
    """Return the command that sorts a table."""
    value = device if re.fullmatch(r"\w+", device) else json.dumps(device)
    settings = [] if device == "device" else [f"device={value}"]
    return shlex.join(["partita", "import", "sort", str(path), "OUT.parquet", *settings])
