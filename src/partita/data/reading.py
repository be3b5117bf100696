"""Reading tables a few rows at a time: Parquet files and folders of them, of any size, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from partita.data.arrow import Ids
from partita.data.ids import check_id, ids_of
from partita.data.rows import WrongRow
from partita.data.writing import BYTES
from partita.errors import ConfigError

_MOST = 65_536
"""The most rows of a table."""
_BUFFER = 1 << 16
"""Bytes read at a time from a column: row groups of any size take no more."""


@dataclass(frozen=True)
class Stream:
    """A table that comes a few rows at a time."""

    schema: pa.Schema
    rows: int
    """How many rows come in all."""
    tables: Iterable[pa.Table]
    """The rows, in their order; taken once."""


@dataclass(frozen=True)
class Files:
    """Parquet files of one schema that make up a table."""

    paths: Sequence[Path]
    schema: pa.Schema
    rows: int

    def need(self, column: str) -> None:
        """Raise a `ConfigError` that lists the columns there are, where one is not among them."""
        if column not in self.schema.names:
            there = ", ".join(self.schema.names)
            raise ConfigError(f"`{self.paths[0]}` has no column {column!r}. It has: {there}.")

    def stream(self, nbytes: int = BYTES) -> Stream:
        """Return the rows, in tables of about `nbytes` each at most."""
        return Stream(self.schema, self.rows, self._tables(nbytes))

    def full(self, column: str, nbytes: int = BYTES) -> Iterator[pa.Array]:
        """Yield the values of a column, and nothing else, a few at a time.

        Raises:
            ConfigError: a row has no value.
        """
        for path in self.paths:
            first = 0
            for table in _tables_of(path, nbytes, [column]):
                values = table[column].combine_chunks()
                if values.null_count:
                    row = first + values.is_null().index(True).as_py()
                    raise ConfigError(f"`{path}`, row {row}: `{column}` is empty. Every row must have one.")
                first += len(values)
                yield values

    def check_ids(self, column: str, nbytes: int = BYTES) -> None:
        """Raise a `ConfigError` unless a column says of every row whose it is."""
        check_id(self.schema.field(column).type, column, f"`{self.paths[0]}`")
        for path in self.paths:
            first = 0
            for table in _tables_of(path, nbytes, [column]):
                try:
                    first += len(ids_of(table[column], column))
                except WrongRow as error:
                    raise ConfigError(
                        f"`{path}`, row {first + error.row}: {error}. Every row needs a text or a number."
                    ) from None

    def tables(self, columns: Sequence[str], nbytes: int = BYTES) -> Iterator[pa.Table]:
        """Yield some columns of all rows, in tables of about `nbytes` each at most."""
        for path in self.paths:
            yield from _tables_of(path, nbytes, list(columns))

    def _tables(self, nbytes: int) -> Iterator[pa.Table]:
        for path in self.paths:
            yield from _tables_of(path, nbytes, None)


def open_files(source: Path) -> Files:
    """Return the Parquet file at `source`, or all of a folder, in the order of their names."""
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
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"`{paths[0]}` has several columns `{twice[0]}`: each needs a name of its own.")
    return Files(paths, schemas[0], rows)


def pieces(table: pa.Table, nbytes: int) -> Iterator[pa.Table]:
    """Yield a table's rows in pieces of at most `nbytes`, or of one row where that is larger."""
    if len(table) > 1 and table.nbytes > nbytes:
        half = len(table) // 2
        yield from pieces(table.slice(0, half), nbytes)
        yield from pieces(table.slice(half), nbytes)
    elif len(table):
        yield table


def ids_in(path: Path) -> Ids:
    """Return the ids of a table's devices, whose rows are in the order of ids."""
    return Ids(_ids_in(path))


def one_line(error: Exception) -> str:
    """Return the first line of what an error says, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.!')}."


def _ids_in(path: Path) -> Iterator[str]:
    last = None
    for table in _tables_of(path, BYTES, ["device"]):
        for device in table["device"].unique().to_pylist():
            if device != last:
                yield device
            last = device


def _open(path: Path) -> pq.ParquetFile:
    try:
        # Buffered ahead, as is the default, whole row groups are in memory whatever the size of a batch.
        return pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except FileNotFoundError:
        raise ConfigError(f"There is no file or folder `{path}`.") from None
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"`{path}` cannot be read as Parquet: {one_line(error)}") from error


def _bytes_a_row(metadata: pq.FileMetaData, columns: list[str] | None) -> int:
    """Return how many bytes some columns have to a row, in the row group where it is most."""
    most = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(group.num_columns)]
        own = [c for c in chunks if columns is None or c.path_in_schema.partition(".")[0] in columns]
        most = max(most, sum(c.total_uncompressed_size for c in own) // max(1, group.num_rows))
    return most


def _tables_of(path: Path, nbytes: int, columns: list[str] | None) -> Iterator[pa.Table]:
    with _open(path) as file:
        size = min(max(nbytes // max(1, _bytes_a_row(file.metadata, columns)), 1), _MOST)
        try:
            for batch in file.iter_batches(size, columns=columns):
                yield pa.Table.from_batches([batch])
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"`{path}` cannot be read: {one_line(error)}") from error
