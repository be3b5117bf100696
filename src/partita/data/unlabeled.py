"""Rows of a table that nothing is learned from: all of them, in order, a few at a time, by device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from partita.data.arrow import check_id_type, id_strings
from partita.data.files import ParquetFiles, open_files
from partita.data.rows import RowError, Rows, SkippedRow
from partita.data.table import decode_rows
from partita.errors import ConfigError
from partita.protocol import DeviceId

SPLIT = "test"
"""The split that rows are read as: they are not augmented."""


@dataclass(frozen=True)
class Asked:
    """Rows of one device that are to be predicted."""

    device: DeviceId
    positions: Sequence[int]
    """The numbers of the rows in the table, from 0."""
    ids: Sequence[str | None]
    """The row ids, None where the table has none."""
    rows: Rows
    bad: list[SkippedRow]
    """The bad rows that were skipped when examples were made of the rows; grows in place."""


@dataclass(frozen=True, kw_only=True)
class UnlabeledTable:
    """A table of rows to predict: the columns of inputs, device ids, and optionally row ids.

    Where the table has no column of devices, all rows belong to the one device that is given.
    """

    path: Path
    columns: Sequence[str]
    device_column: str = "device"
    id_column: str = "id"
    device: DeviceId | None = None
    """The only device whose rows are read; None: all devices."""
    skip_bad: bool = False

    @property
    def _files(self) -> ParquetFiles:
        """The table's files.

        Raises:
            ConfigError: the table is missing, or lacks a column.
        """
        files = open_files(self.path)
        for column in self.columns:
            files.require_column(column)
        if self.device is None:
            files.require_column(self.device_column)
        if self.device_column in files.schema.names:
            kind = files.schema.field(self.device_column).type
            check_id_type(kind, self.device_column, f"`{self.path}`")
        return files

    def ids(self) -> dict[DeviceId, int]:
        """Return the devices with rows to predict, in order, and the number of rows of each."""
        counts: dict[DeviceId, int] = {}
        files = self._files
        if self.device_column not in files.schema.names:
            return {self.device or "": files.rows}
        for _, first, table in self._tables(files, [self.device_column]):
            found = pa.table({"device": self._devices(table, first)})["device"].value_counts().to_pylist()
            for entry in found:
                counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
        return counts if self.device is None else {self.device: counts.get(self.device, 0)}

    def blocks(self) -> Iterator[list[Asked]]:
        """Yield the rows, a few megabytes at a time; every block by device."""
        files = self._files
        has_ids = self.id_column in files.schema.names
        names = [*self.columns, *([self.id_column] if has_ids else [])]
        names += [self.device_column] if self.device_column in files.schema.names else []
        for file, first, table in self._tables(files, list(dict.fromkeys(names))):
            by_device: dict[DeviceId, list[int]] = {}
            for position, device in enumerate(self._devices(table, first).to_pylist()):
                if self.device is None or device == self.device:
                    by_device.setdefault(device, []).append(position)
            keys = table[self.id_column].cast(pa.string()).to_pylist() if has_ids else [None] * len(table)
            yield [
                self._asked(device, table, own, (str(file), first), keys) for device, own in by_device.items()
            ]

    def _asked(
        self,
        device: DeviceId,
        table: pa.Table,
        own: list[int],
        place: tuple[str, int],
        keys: Sequence[str | None],
    ) -> Asked:
        file, first = place
        bad: list[SkippedRow] = []
        content = decode_rows(table.select(list(self.columns)).take(pa.array(own)))
        locations = [(file, first + position) for position in own]
        rows = Rows(device, SPLIT, locations, content, bad.append if self.skip_bad else None)
        return Asked(device, [first + p for p in own], [keys[p] for p in own], rows, bad)

    def _tables(self, files: ParquetFiles, columns: Sequence[str]) -> Iterator[tuple[Path, int, pa.Table]]:
        """Yield some columns of a few rows at a time, with the number of the first row."""
        first = 0
        for table in files.tables(columns):
            yield self.path, first, table
            first += len(table)

    def _devices(self, table: pa.Table, first: int) -> pa.Array:
        """Return the device of each row."""
        if self.device_column not in table.column_names:
            return pa.repeat(pa.scalar(self.device or ""), len(table))
        try:
            return id_strings(table[self.device_column], self.device_column)
        except RowError as error:
            raise ConfigError(f"`{self.path}`, row {first + error.row}: {error}.") from None
