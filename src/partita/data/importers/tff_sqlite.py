"""TensorFlow Federated's SQLite files: a table of examples, a `tf.train.Example` each, and one of counts."""

import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.data.importers.example_proto import read_example
from partita.data.importers.source import Tick
from partita.data.importers.tff_examples import TICK, Example, Layout, Side, place
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
    WHERE client_id = :device AND split_name = :split ORDER BY rowid LIMIT :most
"""
_BY_PLACE = """
    SELECT serialized_example_proto FROM temp.places CROSS JOIN examples ON examples.rowid = places.place
    WHERE places.device = :device AND places.split = :split ORDER BY places.place LIMIT :most
"""
_ROWS = 10_000
"""Rows looked at together while the places of devices are found."""


class SqliteExamples:
    """The examples in an SQLite file, opened to read only.

    The public files have an index by device. Where one has none, a pass over the table notes in a temporary
    database on disk where the rows of the kept devices are, as a pass for each device would take days.
    """

    def __init__(self, layout: Layout, path: Path) -> None:
        self._layout = layout
        self._path = path
        self._query = _BY_DEVICE
        self._noted: frozenset[DeviceId] = frozenset()
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
        weakref.finalize(self, self._connection.close)

    def file(self, side: Side) -> Path:
        """Return the file, the same for every side."""
        return self._path

    def counts(self, tick: Tick) -> Iterator[tuple[DeviceId, int, int]]:
        """Yield each device with what `client_metadata` counts of it."""
        splits: Mapping[str, str] = {**self._layout.splits}
        total = next(self._run(_DEVICES, splits))[0]
        if not total:
            known = [split for (split,) in self._run(_SPLITS)]
            raise ConfigError(f"`{self._path}` must have the splits {list(splits.values())}, got {known}.")
        for number, (device, train, test) in enumerate(self._run(_COUNTS, splits)):
            if not isinstance(device, str):
                raise ConfigError(f"`{self._path}`: each `client_id` must be a text, got {device!r}.")
            if number % TICK == 0:
                tick(number, total)
            yield device, int(train), int(test)

    def keep(self, devices: Sequence[DeviceId], tick: Tick) -> None:
        """Find the rows of these devices in one pass, unless the file has an index by device."""
        kept = frozenset(devices)
        if kept <= self._noted or any(self._run(_INDEXED)):
            return
        total = next(self._run("SELECT total(num_examples) FROM client_metadata"))[0]
        self._do("PRAGMA temp_store = FILE")
        self._do("DROP TABLE IF EXISTS temp.places")
        self._do("CREATE TABLE temp.places (device TEXT, split TEXT, place INTEGER)")
        with self._connection, self._errors_told():
            self._do("BEGIN")
            self._note_places(kept, int(total), tick)
        self._do("CREATE INDEX temp.places_by_device ON places (device, split, place)")
        self._query, self._noted = _BY_PLACE, kept

    def read(self, device: DeviceId, side: Side, most: int | None) -> Iterator[Example]:
        """Yield a device's first examples of a side, in the order of the table, one in memory at a time."""
        limit = -1 if most is None else most
        values = {"device": device, "split": self._layout.splits[side], "most": limit}
        for row, (data,) in enumerate(self._run(self._query, values)):
            yield self._example(data, place(self._path, device, side, row))

    def _example(self, data: object, where: str) -> Example:
        try:
            if not isinstance(data, bytes):
                raise ValueError(f"It is no bytes, but {type(data).__name__}.")
            example = read_example(data)
        except ValueError as error:
            raise ConfigError(f"{where} must be a serialized `tf.train.Example`: {error}") from error
        for member in self._layout.members:
            if member not in example:
                raise ConfigError(f"{where} must have `{member}`, got {sorted(example)}.")
        return example

    def _note_places(self, devices: frozenset[DeviceId], total: int, tick: Tick) -> None:
        rows = self._connection.execute("SELECT client_id, split_name, rowid FROM examples")
        done = 0
        while some := rows.fetchmany(_ROWS):
            kept = [row for row in some if row[0] in devices]
            self._connection.executemany("INSERT INTO temp.places VALUES (?, ?, ?)", kept)
            done += len(some)
            tick(min(done, total), total)

    def _do(self, statement: str) -> None:
        list(self._run(statement))

    def _run(self, statement: str, values: Mapping[str, Any] | None = None) -> Iterator[tuple[Any, ...]]:
        with self._errors_told():
            yield from self._connection.execute(statement, values or {})

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ConfigError(
                f"`{self._path}` cannot be read as TensorFlow Federated's `{self._layout.sqlite}`, "
                f"decompressed: {error}."
            ) from error
