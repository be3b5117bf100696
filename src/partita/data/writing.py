"""Writing tables by device: small row groups, so that one device's rows are read without many others'."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

_MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TYPES = {
    "image": _MEDIA,
    "audio": _MEDIA,
    "text": pa.string(),
    "label": pa.int64(),
    "number": pa.float64(),
}
_FEATURES = {
    "image": {"_type": "Image"},
    "audio": {"_type": "Audio"},
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"dtype": "int64", "_type": "Value"},
    "number": {"dtype": "float64", "_type": "Value"},
}
ROWS = 2048
BYTES = 4_000_000
"""The most rows, and about the most bytes, of a row group."""


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a table with `device`, `split` and content, which `datasets` opens as well."""
    kinds = {"device": "text", "split": "text", **columns}
    features = {name: _FEATURES[kind] for name, kind in kinds.items()}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()], metadata=about)


class TableWriter:
    """Writes rows to a Parquet file in small row groups, in bounded memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()

    def add_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write some rows."""
        self.add(pa.Table.from_pylist(list(rows), schema=self._schema))

    def add(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        step = max(1, min(ROWS, BYTES * len(table) // max(table.nbytes, 1)))
        for begin in range(0, len(table), step):
            part = table.slice(begin, step)
            if self._rows and (self._rows + len(part) > ROWS or self._bytes + part.nbytes > BYTES):
                self._flush()
            self._waiting.append(part)
            self._rows += len(part)
            self._bytes += part.nbytes

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._rows, self._bytes = [], 0, 0


def copy_tables(paths: Iterable[Path], out: Path) -> None:
    """Write the row groups of several tables of one schema to one, a row group at a time."""
    remaining = list(paths)
    with TableWriter(out, pq.read_schema(remaining[0])) as writer:
        for path in remaining:
            file = pq.ParquetFile(path)
            for number in range(file.num_row_groups):
                writer.add(file.read_row_group(number))
