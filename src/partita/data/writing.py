"""Writing tables by device in small row groups: one device's rows are read without many others.

The files of an import are in a folder beside its table until the table is whole. Only one process at a time
has that folder, and only files that an import has made are deleted from it.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from partita.durable import locked, make_folder, move_file, naming, sync_folder, write_file
from partita.errors import ConfigError, InUse, RunFailed, fault_text

logger = logging.getLogger(__name__)

ColumnKind = Literal["image", "audio", "text", "label", "number"]
"""The content of a column: media as `{bytes, path}`, strings, classes from 0 on, real numbers."""
ProgressFn = Callable[[int, int], None]
"""A progress callback: called with the amount of work done and the total."""

_MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TYPES: dict[ColumnKind, pa.DataType] = {
    "image": _MEDIA,
    "audio": _MEDIA,
    "text": pa.string(),
    "label": pa.int64(),
    "number": pa.float64(),
}
_FEATURES: dict[ColumnKind, Mapping[str, str]] = {
    "image": {"_type": "Image"},
    "audio": {"_type": "Audio"},
    "text": {"dtype": "string", "_type": "Value"},
    "label": {"dtype": "int64", "_type": "Value"},
    "number": {"dtype": "float64", "_type": "Value"},
}
ROWS = 2048
"""The maximum number of rows in a row group."""
BYTES = 4_000_000
"""About the maximum number of bytes in a row group."""
SCRATCH = ".partita"
"""The suffix of every file in the folder of an import."""
STATE = f"state{SCRATCH}"
"""The state of an import that can be resumed: while it exists, an import that fails keeps its files."""
_MARKER = f"import{SCRATCH}"
"""The file that marks the folder of an import; the process that writes the table holds its lock."""


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


def check_new(out: Path) -> None:
    """Raise a `ConfigError` if `out` cannot be a new file: it exists, or its folder does not."""
    if out.exists():
        raise ConfigError(f"`{out}` exists already: give another name, or remove it.")
    if not out.parent.is_dir():
        raise ConfigError(f"There is no folder `{out.parent}` to write `{out.name}` in.")


@contextlib.contextmanager
def importing(out: Path) -> Iterator[Path]:
    """Yield a new or left-over folder for the files of an import to `out`, locked, and delete it at the end.

    Raises:
        ConfigError: `out` cannot be a new file, or the folder's name is taken.
        InUse: another process is writing `out`.
    """
    check_new(out)
    folder = out.with_name(f"{out.name}.partita-import")
    if folder.exists() and not _is_free(folder):
        raise ConfigError(
            f"`{folder}` is not the folder of an import: remove it, or give another name than `{out.name}`."
        )
    make_folder(folder, exist_ok=True)
    folder.chmod(0o700)
    with locked(folder / _MARKER) as is_ours:
        if not is_ours:
            raise InUse(f"`{out}`")
        write_file(folder / _MARKER, f"Files of `partita import` for `{out.name}`.\n".encode())
        sync_folder(folder)
        try:
            check_new(out)  # Another process may just have written it.
            yield folder
        except BaseException:
            if not (folder / STATE).exists():
                _try_to_delete(folder)
            raise
        _try_to_delete(folder)


def _is_free(folder: Path) -> bool:
    """Return whether an import may use a folder: one has marked it, or it is empty."""
    return folder.is_dir() and ((folder / _MARKER).exists() or not any(folder.iterdir()))


def clear(folder: Path) -> None:
    """Delete the files of an import from its folder, the marker aside; files of others stay."""
    for path in folder.iterdir():
        if path.name != _MARKER and path.name.endswith((SCRATCH, f"{SCRATCH}.tmp")):
            path.unlink()


def _delete(folder: Path) -> None:
    """Delete the folder of an import; files of others stay, and the folder with them."""
    clear(folder)
    (folder / _MARKER).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _try_to_delete(folder: Path) -> None:
    """Delete the folder of an import, with a warning where that fails: a table beside it is whole."""
    try:
        _delete(folder)
    except OSError as error:
        logger.warning(
            "`%s`, the folder of an import that has ended, cannot be deleted: %s.", folder, error.strerror
        )


def remove_abandoned(folder: Path) -> None:
    """Delete the folder of an import whose process was killed; one that is in use stays."""
    if _is_free(folder):
        with locked(folder / _MARKER) as is_ours:
            if is_ours:
                _delete(folder)


def publish(whole: Path, out: Path, mode: int | None = None) -> None:
    """Move a complete table to `out`, which must still be a new name, and wait until it is on disk.

    Raises:
        RunFailed: it has the new name, and the system neither confirms that it is on disk nor takes it back.
    """
    check_new(out)
    if mode is not None:
        whole.chmod(mode)
    try:
        move_file(whole, out)
    except OSError as error:
        if not whole.exists():  # It has the new name, which is not certain to be on disk.
            try:
                out.replace(whole)
            except OSError:
                raise RunFailed(
                    f"{fault_text(error)} `{out}` is complete, but if the machine stops now, it may be gone."
                ) from error
        raise


def schema_of(columns: Mapping[str, ColumnKind]) -> pa.Schema:
    """Return the schema of a table with `device`, `split` and content; `datasets` can open it, too."""
    kinds: dict[str, ColumnKind] = {"device": "text", "split": "text", **columns}
    features = {name: _FEATURES[kind] for name, kind in kinds.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()], metadata=metadata)


class TableWriter:
    """Writes rows to a Parquet file in small row groups, in bounded memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._path = path
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
        self._pending: list[pa.Table] = []
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
        with naming(self._path):
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
                with naming(self._path):
                    self._flush()
            self._pending.append(part)
            self._rows += len(part)
            self._bytes += part.nbytes

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
        self._pending, self._rows, self._bytes = [], 0, 0


def copy_tables(paths: Iterable[Path], out: Path) -> None:
    """Write the rows of several tables with one schema to one table, a row group at a time."""
    remaining = list(paths)
    with TableWriter(out, pq.read_schema(remaining[0])) as writer:
        for path in remaining:
            file = pq.ParquetFile(path)
            for number in range(file.num_row_groups):
                writer.add(file.read_row_group(number))
