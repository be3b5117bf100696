"""A Parquet table read by device: an index locates the rows, which are read one device at a time."""

import bisect
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from partita.data.arrow import Ids, check_id_type, first_repeated, id_strings
from partita.data.cache import ExampleCache
from partita.data.devices import Devices
from partita.data.files import RowGroups
from partita.data.index import Batch, Index, IndexCache, build_index, select_devices, sort_index
from partita.data.options import TableOptions
from partita.data.rows import PartialRow, RowError, Rows, SkippedRow, SkippedRows
from partita.data.sorted_copy import ensure_sorted_copy
from partita.data.splits import SPLITS, SplitRule
from partita.data.unseen import divide
from partita.errors import ConfigError, did_you_mean
from partita.protocol import DeviceId


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
            copy = ensure_sorted_copy(path, self.groups.paths, device=options.device)
            index = self._open(copy, copy_of=self.groups)
        self.index = select_devices(index, self.rule, path, self._have_same_content)
        """The index of the selected devices."""
        self.whole_index = index if unseen else self.index
        """The index of all devices in the table, selected or not, where some are unseen."""
        self.seen_ids = divide(self.ids, unseen)[0]
        """The ids of the selected devices without the unseen ones."""

    def _open(self, path: Path, *, copy_of: RowGroups | None = None) -> Index:
        """Open the table at `path`, in place, and return its index, which is built and cached if needed."""
        self.groups = RowGroups(path, copy_of=copy_of)
        if copy_of is not None and not self.groups.schema.equals(copy_of.schema):
            raise self._damaged_copy("its columns are not those of the table")
        self.rule = SplitRule(self.groups.schema.names, self.options)
        self._check_columns()
        cache = IndexCache(path, self.groups.paths, self.rule)
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
            self.ids,
            lambda device: _DeviceSplits(self, device, examples, cache),
            largest=lambda: self._used(int(self.index.counts_in("train").max())),
            size=lambda device: self._used(int(self.index.counts_in("train")[self._position(device)])),
        )

    def _used(self, rows: int) -> int:
        """Return how many of a device's training rows are used."""
        return min(rows, self.options.max_examples) if self.options.max_examples else rows

    @cached_property
    def ids(self) -> Ids:
        """The ids of the selected devices."""
        return Ids(self.index.ids)

    def rows_of(self, device: DeviceId, *, columns: Sequence[str] = ()) -> dict[str, Rows]:
        """Return a device's rows by split, without empty splits, with all content or some columns of it."""
        position = self._position(device)
        start = int(self.index.starts[position])
        content = list(columns or self.columns)
        end = start + int(self.index.counts[position].sum())
        table = self.read(start, end, [*content, *self.groups.numbers], device)
        locations = self.groups.locations(start, table)
        values = decode_rows(table.select(content))
        splits = self.rule.assign(table)
        found: dict[str, Rows] = {}
        for code, split in enumerate(SPLITS):
            rows = np.flatnonzero(splits == code).tolist()
            if split == "train" and self.options.max_examples:
                rows = rows[: self.options.max_examples]
            if rows:
                places = [locations[row] for row in rows]
                found[split] = Rows(device, split, places, [values[row] for row in rows], self._skip)
        return found

    def read(self, begin: int, end: int, columns: Sequence[str], device: DeviceId | None = None) -> pa.Table:
        """Return some columns of the rows from `begin` up to `end`, and those that their splits need."""
        names = list(dict.fromkeys([self.options.device, *self.rule.columns, *columns]))
        try:
            return self.groups.read(begin, end, names)
        except RowError as error:
            if self.groups.copy_of is not None:
                raise self._damaged_copy(str(error)) from error
            raise self.error(max(error.row, begin), str(error), device) from error

    def splits_of(self, device: DeviceId) -> list[str]:
        """Return the splits in which a device has rows."""
        counts = self.index.counts[self._position(device)]
        return [split for split, rows in zip(SPLITS, counts.tolist(), strict=True) if rows]

    def _position(self, device: DeviceId) -> int:
        ids = self.index.ids
        position = bisect.bisect_left(range(len(ids)), device, key=lambda number: ids[number].as_py())
        if position == len(ids) or ids[position].as_py() != device:
            raise KeyError(device)
        return position

    @property
    def _skip(self) -> Callable[[SkippedRow], None] | None:
        return self.skipped.add if self.options.skip_bad else None

    def _check_columns(self) -> None:
        names = self.groups.schema.names
        options = self.options
        needed = [options.device, self.rule.split_column, options.id, options.group, *self.columns]
        needed += [options.time] if self.rule.by_time else []
        for name in filter(None, needed):
            if name not in names:
                hint = did_you_mean(name, names)
                raise ConfigError(
                    f"`{self.path}` has no column `{name}`.{hint} Its columns: {', '.join(names)}."
                )
        if self.rule.by_time and (options.group or "group" in names):
            raise ConfigError(f'`{self.path}` has groups, which `split = "time"` cannot keep in one split.')
        check_id_type(self.groups.schema.field(options.device).type, options.device, f"`{self.path}`")
        if wrong := self.rule.wrong_type(self.groups.schema):
            raise ConfigError(f"`{self.path}`: {wrong}.")

    def _have_same_content(self, begin: int, end: int) -> bool:
        """Return whether any two rows between two row numbers have the same content."""
        keys = self.rule.row_keys(self.groups.read(begin, end, self.rule.key_columns))
        return len(set(keys)) < len(keys)

    def _build_index(self) -> Index:
        index = build_index(self._batches(), self.rule)
        if (device := first_repeated(index.ids)) is not None:
            raise _NotGrouped(
                f"The rows of `{self.path}` are not grouped by device, those of {device!r} are in several "
                f"places: `{_sort_command(self.path, self.options.device)}` writes a sorted table, and "
                "`sort = true` reads a sorted copy."
            )
        return sort_index(index)

    def _batches(self) -> Iterator[Batch]:
        """Yield the ids and the splits of all rows, batch by batch; by time, 0 stands for each split."""
        names = list(dict.fromkeys([self.options.device, *self.rule.columns]))
        first = 0
        for rows in self.groups.tables(names):
            try:
                ids = id_strings(rows[self.options.device], self.options.device)
            except RowError as error:
                raise self.error(first + error.row, str(error)) from None
            try:
                self.rule.check_complete(rows)
                unknown = np.zeros(len(rows), int)
                splits, order = (unknown, unknown) if self.rule.by_time else self.rule.draw(rows)
            except RowError as error:
                raise self.error(first + error.row, str(error), ids[error.row].as_py()) from None
            yield ids, splits, order
            first += len(rows)
        if not first:
            raise ConfigError(f"`{self.path}` has no rows.")

    def _damaged_copy(self, reason: str) -> ConfigError:
        return ConfigError(
            f"`{self.groups.paths[0]}`, the sorted copy of `{self.path}`, is damaged: {reason}. Delete it, "
            "and the next command sorts the table again."
        )

    def error(self, row: int, message: str, device: DeviceId | None = None) -> ConfigError:
        """Return an error with the location of a row."""
        file, number = self.groups.locate(row)
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
        return self._cache.get_or_load((self._device, split), lambda: self._load(split))

    def _load(self, split: str) -> Any:
        if split not in self._rows:
            raise ConfigError(
                f"`{self._table.path}`, device {self._device!r}: it has no {split} rows any more. The table "
                "is damaged, or has changed while it was read."
            )
        return self._examples(self._rows[split])

    def __contains__(self, split: object) -> bool:
        return split in self._splits

    def __iter__(self) -> Iterator[str]:
        return iter(self._splits)

    def __len__(self) -> int:
        return len(self._splits)


def decode_rows(table: pa.Table) -> Sequence[Mapping[str, Any]]:
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
