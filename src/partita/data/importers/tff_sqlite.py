"""TensorFlow Federated's SQLite files: a table of `tf.train.Example` records, and a table of counts."""

import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from partita.data.importers.example_proto import read_example
from partita.data.importers.tff_examples import DEVICES_AT_A_TIME, Example, Layout, Split, location
from partita.data.writing import ProgressFn
from partita.errors import ConfigError
from partita.protocol import DeviceId

_DEVICES = "SELECT count(DISTINCT client_id) FROM client_metadata WHERE split_name IN (:train, :test)"
_SPLITS = "SELECT DISTINCT split_name FROM client_metadata ORDER BY split_name"
_COUNTS = """
    SELECT client_id, total(num_examples * (split_name = :train)), total(num_examples * (split_name = :test))
    FROM client_metadata WHERE split_name IN (:train, :test) GROUP BY client_id ORDER BY client_id
"""
_INDEXED = """
    SELECT 1 FROM pragma_index_list('examples') AS list JOIN pragma_index_info(list.name) AS own
    WHERE NOT list.partial AND own.name = 'client_id' AND (
        own.seqno = 0 OR own.seqno = 1 AND 'split_name' = (
            SELECT name FROM pragma_index_info(list.name) WHERE seqno = 0
        )
    )
"""
_BY_DEVICE = """
    SELECT serialized_example_proto FROM examples
    WHERE client_id = :device AND split_name = :split ORDER BY rowid LIMIT :limit
"""
_BY_ROWID = """
    SELECT serialized_example_proto
    FROM temp.device_rows CROSS JOIN examples ON examples.rowid = device_rows.number
    WHERE device_rows.device = :device AND device_rows.split = :split ORDER BY device_rows.number LIMIT :limit
"""
_ROWS = 10_000
"""Rows read at a time in the pass that finds the rows of devices."""


class SqliteExamples:
    """The examples in an SQLite file, opened read-only.

    The public files have an index by device. For a file without one, a single pass over the table notes the
    rows of the kept devices in a temporary database on disk: a pass per device would take days.
    """

    def __init__(self, layout: Layout, path: Path) -> None:
        self._layout = layout
        self._path = path
        self._query = _BY_DEVICE
        self._noted: frozenset[DeviceId] = frozenset()
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
        weakref.finalize(self, self._connection.close)

    def file(self, split: Split) -> Path:
        """Return the file, which has every split."""
        return self._path

    def counts(self, progress: ProgressFn) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device, sorted by id, with its counts in `client_metadata`."""
        splits: Mapping[str, str] = {**self._layout.splits}
        total = next(self._run(_DEVICES, splits))[0]
        if not total:
            found = [split for (split,) in self._run(_SPLITS)]
            raise ConfigError(f"`{self._path}` must have the splits {list(splits.values())}, got {found}.")
        for number, (device, train, test) in enumerate(self._run(_COUNTS, splits)):
            if not isinstance(device, str):
                raise ConfigError(f"`{self._path}`: each `client_id` must be a string, got {device!r}.")
            if not all(isinstance(count, float) and isfinite(count) for count in (train, test)):
                raise ConfigError(f"`{self._path}`: `num_examples` of {device!r} must be whole numbers.")
            if number % DEVICES_AT_A_TIME == 0:
                progress(number, total)
            yield device, int(train), int(test)

    def keep(self, devices: Sequence[DeviceId], progress: ProgressFn) -> None:
        """Note the rows of these devices, in place and in one pass, unless the file has such an index."""
        kept = frozenset(devices)
        if kept <= self._noted or any(self._run(_INDEXED)):
            return
        total = next(self._run("SELECT total(num_examples) FROM client_metadata"))[0]
        self._do("PRAGMA temp_store = FILE")
        self._do("DROP TABLE IF EXISTS temp.device_rows")
        self._do("CREATE TABLE temp.device_rows (device TEXT, split TEXT, number INTEGER)")
        with self._connection, self._sqlite_errors():
            self._do("BEGIN")
            self._note_rows(kept, int(total), progress)
        self._do("CREATE INDEX temp.device_rows_by_device ON device_rows (device, split, number)")
        self._query, self._noted = _BY_ROWID, kept

    def read(self, device: DeviceId, split: Split, limit: int | None) -> Iterator[Example]:
        """Yield a device's first `limit` examples of a split, in the table's order, one at a time."""
        rows = -1 if limit is None else limit
        values = {"device": device, "split": self._layout.splits[split], "limit": rows}
        for row, (data,) in enumerate(self._run(self._query, values)):
            yield self._example(data, location(self._path, device, split, row))

    def _example(self, data: object, where: str) -> Example:
        try:
            if not isinstance(data, bytes):
                raise ValueError(f"It must be bytes, got {type(data).__name__}.")
            example = read_example(data)
        except ValueError as error:
            raise ConfigError(f"{where} must be a serialized `tf.train.Example`: {error}") from error
        for member in self._layout.members:
            if member not in example:
                raise ConfigError(f"{where} must have `{member}`, got {sorted(example)}.")
        return example

    def _note_rows(self, devices: frozenset[DeviceId], total: int, progress: ProgressFn) -> None:
        rows = self._connection.execute("SELECT client_id, split_name, rowid FROM examples")
        done = 0
        while some := rows.fetchmany(_ROWS):
            kept = [row for row in some if row[0] in devices]
            self._connection.executemany("INSERT INTO temp.device_rows VALUES (?, ?, ?)", kept)
            done += len(some)
            progress(min(done, total), total)

    def _do(self, statement: str) -> None:
        list(self._run(statement))

    def _run(self, statement: str, values: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, ...]]:
        with self._sqlite_errors():
            yield from self._connection.execute(statement, values or {})

    @contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigError(
                f"`{self._path}` cannot be read as TensorFlow Federated's `{self._layout.sqlite}`, "
                f"decompressed: {error}."
            ) from error
