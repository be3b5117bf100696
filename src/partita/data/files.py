"""Reading Parquet files, or folders of them, of any size in bounded memory: as a stream, or by row group."""

import bisect
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from partita.data.arrow import Ids, check_id_type, id_strings
from partita.data.rows import Location, RowError
from partita.data.writing import BYTES
from partita.errors import ConfigError, did_you_mean, raise_fault

logger = logging.getLogger(__name__)

_MAX_ROWS = 65_536
"""Rows read at a time, at most."""
_BUFFER = 1 << 16
"""Bytes read at a time from a column: the size of a row group does not matter."""
_OPEN_FILES = 16
"""Files that `RowGroups` keeps open: opening a file reads its footer."""
_CACHED_GROUPS = 4
"""Row groups that `RowGroups` caches: devices visited one after the other are often in the same one."""
_LARGE_GROUP = 64_000_000
"""Bytes of a row group above which reading one device's rows is slow."""


@dataclass(frozen=True)
class TableStream:
    """A table that is read a few rows at a time."""

    schema: pa.Schema
    rows: int
    """The total number of rows."""
    tables: Iterable[pa.Table]
    """The rows, in order; can be iterated once."""


@dataclass(frozen=True)
class ParquetFiles:
    """Parquet files with one schema that make up a table."""

    paths: Sequence[Path]
    schema: pa.Schema
    rows: int

    def require_column(self, column: str) -> None:
        """Raise a `ConfigError` that lists the existing columns if there is no such column."""
        if column not in self.schema.names:
            hint, columns = did_you_mean(column, self.schema.names), ", ".join(self.schema.names)
            raise ConfigError(f"`{self.paths[0]}` has no column {column!r}.{hint} Its columns: {columns}.")

    def stream(self, nbytes: int = BYTES) -> TableStream:
        """Return all columns as a stream of tables of at most about `nbytes` each."""
        return TableStream(self.schema, self.rows, self._tables(None, nbytes))

    def tables(self, columns: Sequence[str], nbytes: int = BYTES) -> Iterator[pa.Table]:
        """Yield some columns of all rows, in tables of at most about `nbytes` each."""
        return self._tables(list(columns), nbytes)

    def column_values(self, column: str, nbytes: int = BYTES) -> Iterator[pa.Array]:
        """Yield the values of one column, a few at a time.

        Raises:
            ConfigError: a row has no value.
        """
        for path in self.paths:
            first = 0
            for table in _read_tables(path, nbytes, [column]):
                values = table[column].combine_chunks()
                if values.null_count:
                    row = first + values.is_null().index(True).as_py()
                    raise ConfigError(f"`{path}`, row {row}: `{column}` is empty. Every row needs a value.")
                first += len(values)
                yield values

    def check_ids(self, column: str, nbytes: int = BYTES) -> None:
        """Raise a `ConfigError` unless every row has a device id in this column."""
        check_id_type(self.schema.field(column).type, column, f"`{self.paths[0]}`")
        for path in self.paths:
            first = 0
            for table in _read_tables(path, nbytes, [column]):
                try:
                    first += len(id_strings(table[column], column))
                except RowError as error:
                    raise ConfigError(
                        f"`{path}`, row {first + error.row}: {error}. Every row needs a string or a number."
                    ) from None

    def _tables(self, columns: list[str] | None, nbytes: int) -> Iterator[pa.Table]:
        for path in self.paths:
            yield from _read_tables(path, nbytes, columns)


def open_files(source: Path) -> ParquetFiles:
    """Return the Parquet file at `source`, or all those in a folder, sorted by name.

    Raises:
        ConfigError: there is no such file, it is not Parquet, or the columns differ between files.
    """
    paths = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not paths:
        raise ConfigError(f"The folder `{source}` has no `*.parquet` files.")
    rows, schemas = 0, list[pa.Schema]()
    for path in paths:
        with _open(path) as file:
            rows += file.metadata.num_rows
            schemas.append(file.schema_arrow)
        if not schemas[-1].equals(schemas[0]):
            raise ConfigError(f"`{path}` has other columns than `{paths[0]}`: all files must have the same.")
    names = schemas[0].names
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"`{paths[0]}` has several columns `{repeated[0]}`: column names must be unique.")
    return ParquetFiles(paths, schemas[0], rows)


def sorted_device_ids(path: Path) -> Ids:
    """Return the device ids of a table whose rows are sorted by device."""
    return Ids(_runs_of_ids(path))


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.!')}."


def _runs_of_ids(path: Path) -> Iterator[str]:
    last = None
    for table in _read_tables(path, BYTES, ["device"]):
        for device in table["device"].unique().to_pylist():
            if device != last:
                yield device
            last = device


def _open(path: Path) -> pq.ParquetFile:
    try:
        # `pre_buffer`, the default, would load whole row groups whatever the batch size.
        return pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
    except FileNotFoundError:
        raise ConfigError(f"There is no file or folder `{path}`.") from None
    except (OSError, pa.ArrowException) as error:
        raise_fault(error, path)
        raise ConfigError(f"`{path}` cannot be read as Parquet: {first_line(error)}") from error


def _read_tables(path: Path, nbytes: int, columns: list[str] | None) -> Iterator[pa.Table]:
    with _open(path) as file:
        try:
            size = min(max(nbytes // max(1, _bytes_per_row(file, columns)), 1), _MAX_ROWS)
            for batch in file.iter_batches(size, columns=columns):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise_fault(error, path)
            raise ConfigError(f"`{path}` cannot be read: {first_line(error)}") from error


def _bytes_per_row(file: pq.ParquetFile, columns: list[str] | None) -> int:
    """Return the mean size of a row in some columns, in the row group where it is largest."""
    names = [file.schema.column(position).path.partition(".")[0] for position in range(len(file.schema))]
    read = [position for position, name in enumerate(names) if columns is None or name in columns]
    largest = 0
    for number in range(file.metadata.num_row_groups):
        # Reading finds damage to the metadata of a column; asking for it would end the process.
        next(iter(file.iter_batches(1, row_groups=[number], columns=columns)), None)
        group = file.metadata.row_group(number)
        size = sum(group.column(position).total_uncompressed_size for position in read)
        largest = max(largest, size // max(1, group.num_rows))
    return largest


class RowGroups:
    """The row groups of a Parquet file, or of a folder of them, with random access by row number.

    A few row groups and open files are cached; reading changes these caches in place.

    Args:
        path: the file or the folder.
        copy_of: the table that this one is a sorted copy of, with the numbers of rows there as last column.
    """

    def __init__(self, path: Path, *, copy_of: "RowGroups | None" = None) -> None:
        files = open_files(path)
        self.paths = files.paths
        self.copy_of = copy_of
        self.numbers = [] if copy_of is None else files.schema.names[-1:]
        """The columns of a sorted copy that the table itself does not have."""
        columns = files.schema.names[: len(files.schema.names) - len(self.numbers)]
        self.schema = pa.schema([files.schema.field(name) for name in columns], files.schema.metadata)
        self.tables = files.tables
        self._starts: list[int] = []
        """The number of the first row of each row group."""
        self._groups: list[tuple[Path, int]] = []
        """The file and the number in it of each row group."""
        self._file_starts: list[int] = []
        """The number of the first row of each file."""
        self._open: dict[Path, pq.ParquetFile] = {}
        self._cache: OrderedDict[tuple[int | str, ...], pa.Table] = OrderedDict()
        largest = self._find_groups()
        if largest > _LARGE_GROUP:
            logger.warning(
                "Row groups of `%s` have up to %d MB, all of it read for one device: "
                "`partita import sort` writes small row groups.",
                path,
                largest // 1_000_000,
            )

    def _find_groups(self) -> int:
        """Note where each row group starts, in place, and return the size in bytes of the largest."""
        rows = largest = 0
        for file in self.paths:
            metadata = pq.read_metadata(file)
            self._file_starts.append(rows)
            for number in range(metadata.num_row_groups):
                self._starts.append(rows)
                self._groups.append((file, number))
                rows += metadata.row_group(number).num_rows
                largest = max(largest, metadata.row_group(number).total_byte_size)
        return largest

    def locate(self, row: int) -> Location:
        """Return the file of a row of the table, and the row's number in that file."""
        position = bisect.bisect_right(self._file_starts, row) - 1
        return self.paths[position].name, row - self._file_starts[position]

    def locations(self, begin: int, rows: pa.Table) -> list[Location]:
        """Return the locations of rows that were read from `begin` on, with the columns `numbers`.

        Those of a sorted copy are in the table that it is a copy of.
        """
        if self.copy_of is None:
            return [self.locate(row) for row in range(begin, begin + len(rows))]
        return [self.copy_of.locate(row) for row in rows[self.numbers[0]].to_pylist()]

    def read(self, begin: int, end: int, columns: list[str]) -> pa.Table:
        """Return some columns of the rows from `begin` up to `end`.

        Raises:
            RowError: a row group cannot be read; `row` is its first row.
        """
        number = bisect.bisect_right(self._starts, begin) - 1
        parts: list[pa.Table] = []
        while number < len(self._starts) and self._starts[number] < end:
            group = self._group(number, columns)
            start = self._starts[number]
            low, high = max(begin - start, 0), min(end - start, len(group))
            parts.append(group.slice(low, high - low))
            number += 1
        return pa.concat_tables(parts)

    def _group(self, number: int, columns: list[str]) -> pa.Table:
        key = (number, *columns)
        if key not in self._cache:
            if len(self._cache) == _CACHED_GROUPS:
                self._cache.popitem(last=False)
            self._cache[key] = self._read_group(number, columns)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _read_group(self, number: int, columns: list[str]) -> pa.Table:
        file, number_in_file = self._groups[number]
        try:
            if file not in self._open:
                if len(self._open) == _OPEN_FILES:
                    self._open.popitem()[1].close()
                self._open[file] = pq.ParquetFile(file, page_checksum_verification=True)
            return self._open[file].read_row_group(number_in_file, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise_fault(error, file)
            message = f"the row group cannot be read, {first_line(error).rstrip('.')}"
            raise RowError(self._starts[number], message) from error
