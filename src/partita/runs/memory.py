"""The journal of a run without a folder: lines and measurements are packed, and of many devices on disk."""

import json
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from partita.data.arrow import Table, rows_of, table_of
from partita.device.store import Store
from partita.params import Params, cloned
from partita.protocol import DeviceId
from partita.runs.onboarded import served_by
from partita.server.round import State
from partita.training.evaluation import DeviceRow, Summary
from partita.training.journal import Commit, RoundRow
from partita.training.serving import Served

_IN_MEMORY = 1 << 20
"""Bytes of packed values beyond which they are in a temporary file."""
_HEAD = 8
"""Bytes of the size of a packed value, before it."""


class Packed:
    """Values in the order in which they were appended, as compressed JSON, a twentieth of their memory.

    Beyond a megabyte they are in a temporary file that has no name, so that memory does not grow with
    the number of rounds and devices.

    >>> packed = Packed()
    >>> packed.append(1)
    >>> packed.append(2)
    >>> list(packed)
    [1, 2]
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def append(self, value: Any) -> None:
        """Append a value."""
        content = zlib.compress(json.dumps(value).encode(), level=1)
        self._file.seek(0, os.SEEK_END)
        self._file.write(len(content).to_bytes(_HEAD) + content)
        # A process that is forked off must not have anything left to write.
        self._file.flush()

    def __iter__(self) -> Iterator[Any]:
        place = 0
        while True:
            self._file.seek(place)
            if not (head := self._file.read(_HEAD)):
                return
            content = self._file.read(int.from_bytes(head))
            place += len(head) + len(content)
            yield json.loads(zlib.decompress(content))


class MemoryJournal:
    """The journal of a run without a folder; it is also the record that a `Result` reads.

    Args:
        store: the personal parts of a run in this process; None where the devices keep them elsewhere.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._lines = Packed()
        self._rows = Packed()
        self._shared: dict[str, Params] = {}
        self._table: Table | None = None
        self._summary: Summary | None = None
        self._best: tuple[str, int | None, Params] = "", None, {}

    def last(self) -> Commit | None:
        """Return None: a run in memory is always new."""
        return None

    def state(self) -> State | None:
        """Return None: a run in memory is always new."""
        return None

    def commit(self, commit: Commit, state: State, line: RoundRow, rows: Sequence[DeviceRow]) -> None:
        """Keep the line, the measurements and u after the best round."""
        self._lines.append(line)
        self._rows.append(list(rows))
        if (commit.stage, commit.best) != self._best[:2]:
            self._best = commit.stage, commit.best, {} if commit.best is None else state.shared

    def best(self) -> dict[str, Tensor]:
        """Return u after the best round."""
        return dict(self._best[2])

    def save_shared(self, name: str, params: Params) -> None:
        """Keep a copy."""
        self._shared[name] = cloned(params)

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return a copy."""
        return cloned(self._shared[name])

    def rows(self) -> Iterator[DeviceRow]:
        """Yield the measurements by device."""
        if self._table is not None:
            yield from rows_of(self._table)
        for block in self._rows:
            yield from block

    def finish(self, columns: Mapping[str, type], rows: Iterable[DeviceRow], summary: Summary) -> None:
        """Keep the measurements and the summary."""
        self._table, self._summary = table_of(rows, columns), summary
        self._rows = Packed()

    def finished(self) -> Summary | None:
        """Return the summary, None before the end."""
        return self._summary

    @property
    def summary(self) -> Summary:
        """The summary of the finished run."""
        if self._summary is None:
            raise ValueError("The run is not finished: it has no summary yet.")
        return self._summary

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of all rounds but those of unseen devices."""
        yield from (line for line in self._lines if line.get("seen", True))

    def onboarding(self) -> Iterator[RoundRow]:
        """Yield the lines of the rounds of unseen devices."""
        yield from (line for line in self._lines if not line.get("seen", True))

    @property
    def measurements(self) -> Table:
        """The measurements as a table, empty before the end."""
        return table_of([], {}) if self._table is None else self._table

    @property
    def joined(self) -> Mapping[DeviceId, None]:
        """No device joins a run in memory."""
        return {}

    @property
    def served(self) -> Mapping[DeviceId, Served]:
        """The model that each evaluated device is served."""
        return served_by(self.measurements)

    def kept(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return all tensors that a device keeps."""
        if self._store is None:
            raise ValueError("The personal parts of this run are where its executor keeps them.")
        return self._store.load(device)
