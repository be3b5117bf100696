"""The one door to Arrow: device ids in one array, and tables of rows on disk as Parquet."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import Table

_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_ROWS_AT_A_TIME = 10_000


class Ids(Sequence[str]):
    """Texts in one Arrow array: a million of them take about 15 MB.

    >>> ids = Ids(f"device-{i}" for i in range(3))
    >>> ids[-1], len(ids)
    ('device-2', 3)
    """

    def __init__(self, ids: Iterable[str]) -> None:
        try:
            self._array = pa.array(ids, type=pa.string())
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise TypeError(f"Device ids must be texts: {error}") from None
        if self._array.null_count:
            raise TypeError("Device ids must be texts, got None.")
        if len(self._array.unique()) != len(self._array):
            counts = self._array.value_counts().to_pylist()
            twice = next(entry["values"] for entry in counts if entry["counts"] > 1)
            raise ValueError(f"Device ids must be unique, got {twice!r} more than once.")

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

    def __contains__(self, device: object) -> bool:
        return isinstance(device, str) and pc.index(self._array, device).as_py() >= 0

    def digest(self) -> str:
        """Return a digest of all ids in their order."""
        digest = hashlib.sha256()
        for begin in range(0, len(self), _ROWS_AT_A_TIME):
            digest.update(json.dumps(self[begin : begin + _ROWS_AT_A_TIME]).encode())
        return digest.hexdigest()[:16]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> None:
    """Write the rows as Parquet, a few thousand at a time; `columns` gives names and types."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    remaining = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while block := list(islice(remaining, _ROWS_AT_A_TIME)):
            writer.write_table(pa.Table.from_pylist(block, schema=schema))


def read_table(path: Path) -> Table:
    """Return the table at `path`."""
    return pq.read_table(path)


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, type]) -> Table:
    """Return the rows as a table in memory."""
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
    return pa.Table.from_pylist(list(rows), schema=schema)
