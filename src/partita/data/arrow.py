"""Arrow arrays and tables: device ids in one array, columns of ids, and small tables on disk as Parquet."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import Table

from partita.data.rows import RowError
from partita.durable import naming
from partita.errors import ConfigError

_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_ROWS_AT_A_TIME = 10_000
_DICTS_AT_A_TIME = 1_000


class Ids(Sequence[str]):
    """Unique strings in one Arrow array: a million take 16 MB, at most 60 MB while read.

    >>> ids = Ids(f"device-{i}" for i in range(3))
    >>> ids[-1], len(ids)
    ('device-2', 3)
    """

    def __init__(self, ids: Iterable[str]) -> None:
        try:
            self._array = _strings(ids)
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise TypeError(f"Device ids must be strings: {error}") from None
        except UnicodeEncodeError as error:
            raise ValueError(f"Device ids must be text in UTF-8, got {error.object!r}.") from None
        if self._array.null_count:
            raise TypeError("Device ids must be strings, got None.")
        if (repeated := first_repeated(self._array)) is not None:
            raise ValueError(f"Device ids must be unique, got {repeated!r} more than once.")

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> list[str]: ...
    def __getitem__(self, position: int | slice) -> str | list[str]:
        """Return the id at a position, or the ids of a slice."""
        if isinstance(position, slice):
            return self._array[position].to_pylist()
        return self._array[position].as_py()

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), _ROWS_AT_A_TIME):
            yield from self[begin : begin + _ROWS_AT_A_TIME]

    def __contains__(self, device: object) -> bool:
        return isinstance(device, str) and pc.index(self._array, device).as_py() >= 0

    def digest(self) -> str:
        """Return a digest of all ids in their order."""
        digest = hashlib.sha256()
        for begin in range(0, len(self), _ROWS_AT_A_TIME):
            digest.update(json.dumps(self[begin : begin + _ROWS_AT_A_TIME]).encode())
        return digest.hexdigest()[:16]


def _strings(ids: Iterable[str]) -> pa.Array:
    """Return strings as an array, converted some at a time: Python's own take five times the memory."""
    if isinstance(ids, pa.Array):
        return pa.array(ids, type=pa.string())
    remaining = iter(ids)
    blocks = iter(lambda: list(islice(remaining, _ROWS_AT_A_TIME)), [])
    arrays = [pa.array(block, type=pa.string()) for block in blocks]
    return pa.concat_arrays(arrays) if arrays else pa.array([], type=pa.string())


def first_repeated(ids: pa.Array) -> str | None:
    """Return the first value that occurs more than once, None if all are unique."""
    # Sorted, equal values are neighbors: a table of all values would take six times the memory.
    order = pc.call_function("array_sort_indices", [ids])
    for begin in range(0, len(ids), _ROWS_AT_A_TIME):
        some = ids.take(order[begin : begin + _ROWS_AT_A_TIME + 1])
        if pc.index(pc.call_function("equal", [some[1:], some[:-1]]), True).as_py() >= 0:
            counts = ids.value_counts().to_pylist()
            return next(entry["values"] for entry in counts if entry["counts"] > 1)
    return None


def check_id_type(kind: pa.DataType, column: str, table: str) -> None:
    """Raise a `ConfigError` unless values of this type can be device ids, cast to strings."""
    if not casts_to_string(kind):
        raise ConfigError(f"`{column}` of {table} must hold strings or numbers, got {kind}.")


def casts_to_string(kind: pa.DataType) -> bool:
    """Return whether values of this type can be cast to strings.

    >>> casts_to_string(pa.date32()), casts_to_string(pa.list_(pa.string()))
    (True, False)
    """
    try:
        pa.array([], kind).cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def id_strings(values: pa.ChunkedArray, column: str) -> pa.Array:
    """Return each row's device id as a string.

    Raises:
        RowError: a row has no id, or one that is not UTF-8.
    """
    whole = values.combine_chunks()
    _refuse(whole.is_null(nan_is_null=True), f"`{column}` is empty")
    if not _is_utf8(whole):
        row = next(position for position in range(len(whole)) if not _is_utf8(whole.slice(position, 1)))
        raise RowError(row, f"`{column}` is not UTF-8")
    strings = whole.cast(pa.string())
    _refuse(pc.call_function("equal", [strings, pa.scalar("")]), f"`{column}` is empty")
    return strings


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _refuse(wrong: pa.Array, message: str) -> None:
    """Raise a `RowError` for the first row that is marked wrong."""
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        raise RowError(row, message)


def write_table(path: Path, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> None:
    """Write rows as Parquet, a few thousand at a time; `columns` gives names and types."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    with naming(path), pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in _tables_of(rows, schema):
            writer.write_table(block)


def read_table(path: Path) -> Table:
    """Return the Parquet table at `path`."""
    return pq.read_table(path)


def with_column(table: Table, column: str, *, value: bool) -> Table:
    """Return a table with one more column of booleans, the same in every row; as it is if it has it."""
    if column in table.column_names:
        return table
    return table.append_column(column, pa.repeat(value, len(table)))


def rows_where(table: Table, column: str, *, value: bool | str) -> Table:
    """Return the rows in which a column of booleans or strings has a value; the table itself if all have."""
    has_value = pc.call_function("equal", [table[column], pa.scalar(value)])
    return table if pc.call_function("all", [has_value]).as_py() else table.filter(has_value)


class RowsBy:
    """The rows of a table by the value of a column of strings, found without a look at all others.

    >>> table = table_of([{"x": text, "y": place} for place, text in enumerate("aba")], {"x": str, "y": int})
    >>> rows = RowsBy(table, "x")
    >>> rows["a"], rows["c"]
    ([{'x': 'a', 'y': 0}, {'x': 'a', 'y': 2}], [])
    """

    def __init__(self, table: Table, column: str) -> None:
        keys = table[column].combine_chunks().dictionary_encode()
        self._table = table.combine_chunks()
        self._order = pc.call_function("sort_indices", [keys.indices])
        self._numbers = {value: number for number, value in enumerate(keys.dictionary.to_pylist())}
        counts = np.bincount(keys.indices.to_numpy(), minlength=len(self._numbers))
        self._ends = [0, *np.cumsum(counts).tolist()]

    def __getitem__(self, value: str) -> list[dict[str, Any]]:
        """Return the rows with a value, in their order; there may be none."""
        if (number := self._numbers.get(value)) is None:
            return []
        begin, end = self._ends[number : number + 2]
        return self._table.take(self._order[begin:end]).to_pylist()


def distinct(table: Table, column: str) -> list[str]:
    """Return the different values in a column of strings, in the order of their first rows."""
    return table[column].unique().to_pylist()


def rows_among(table: Table, column: str, values: Iterable[str]) -> Table:
    """Return the rows in which a column of strings has one of some values."""
    options = pc.SetLookupOptions(value_set=pa.array(sorted(values), pa.string()))
    return table.filter(pc.call_function("is_in", [table[column]], options))


def rows_with(table: Table, key: str, column: str) -> Table:
    """Return all rows of each string in `key` that has a value of `column` in any row.

    >>> rows = [{"k": "a", "x": None}, {"k": "b", "x": None}, {"k": "a", "x": "y"}]
    >>> rows_with(table_of(rows, {"k": str, "x": str}), "k", "x")["k"].to_pylist()
    ['a', 'a']
    """
    known = table.filter(table[column].is_valid())
    return rows_among(table, key, distinct(known, key))


def tuples_of(table: Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some columns row by row, converted some at a time.

    >>> list(tuples_of(table_of([{"x": 1.5, "y": 2}], {"x": float, "y": int}), "y", "x"))
    [(2, 1.5)]
    """
    for batch in table.select(list(columns)).to_batches(max_chunksize=_ROWS_AT_A_TIME):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def numbers_by(table: Table, key: str, column: str) -> list[int]:
    """Return a number of each distinct value of `key`; a column that is the same in all of its rows.

    >>> table = table_of([{"k": "a", "n": 2}, {"k": "b", "n": 3}, {"k": "a", "n": 2}], {"k": str, "n": int})
    >>> sorted(numbers_by(table, "k", "n"))
    [2, 3]
    """
    return table.group_by(key).aggregate([(column, "max")])[f"{column}_max"].to_pylist()


def table_of(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> Table:
    """Return rows as a table in memory; `columns` gives names and types."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    return pa.concat_tables([schema.empty_table(), *_tables_of(rows, schema)])


def rows_of(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, converted some at a time: a row as a dict takes ten times the memory."""
    for batch in table.to_batches(max_chunksize=_DICTS_AT_A_TIME):
        yield from batch.to_pylist()


def _tables_of(rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[Table]:
    """Yield rows as tables of a few thousand each; few of them are dicts at a time."""
    remaining = iter(rows)
    while True:
        whole = islice(remaining, _ROWS_AT_A_TIME)
        blocks = iter(lambda: list(islice(whole, _DICTS_AT_A_TIME)), [])  # noqa: B023
        if not (tables := [pa.Table.from_pylist(block, schema=schema) for block in blocks]):
            return
        yield pa.concat_tables(tables).combine_chunks()


def stacked(tables: Iterable[tuple[Mapping[str, str | int], Table]]) -> Table:
    """Return the rows of several tables as one table, each with columns of its own values before the others.

    >>> one = table_of([{"x": 1.5}], {"x": float})
    >>> stacked([({"seed": 1}, one), ({"seed": 2}, one)]).to_pylist()
    [{'seed': 1, 'x': 1.5}, {'seed': 2, 'x': 1.5}]
    """
    return pa.concat_tables(_with_columns(values, table) for values, table in tables)


def _with_columns(values: Mapping[str, str | int], table: Table) -> Table:
    for place, (name, value) in enumerate(values.items()):
        column = pa.repeat(pa.scalar(value, _TYPES[type(value)]), len(table))
        table = table.add_column(place, name, column)
    return table
