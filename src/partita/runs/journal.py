"""The record of a run: its folder, in formats that other tools open, and every round committed in it.

A round is committed by one rename, that of `commit.json`. All that belongs to it is on disk before;
after it only the personal parts filed by counted devices move to their places, and doing that twice
does no harm. So a run that is killed at any moment goes on from its last committed round.
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from partita.data.arrow import Table, read_table, table_of, write_table
from partita.device.store import DiskStore, MemoryStore, Store
from partita.durable import replace_file, sync_file, write_file
from partita.errors import ConfigError, InUse
from partita.params import Params, cloned, from_bytes, to_bytes
from partita.protocol import DeviceId
from partita.server.round import State
from partita.training.evaluation import Row, Summary

_JOURNALS = ("rounds", "devices")
_CHECKPOINTS = ("shared", "optimizer")
_CHECKPOINT = re.compile(r"checkpoint-\d+-(shared|optimizer)\.safetensors")
_FILES = {
    *("config.toml", "commit.json", "summary.json", "devices.parquet"),
    *("rounds.jsonl", "devices.jsonl", "skipped.jsonl", "report.html"),
}
_FOLDERS = {"shared", "personal", "finetune", "tensorboard", "watchers", "figures", "tables"}


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The last round that a run will not do again."""

    number: int
    """Which turn of the plan it was, from 0."""
    stage: str
    round: int
    label: str
    """What personal parts were filed under in it."""
    counted: Sequence[DeviceId]
    """Whose personal parts moved."""
    heard: bool
    """Whether any device was heard in a training round of this stage."""
    identity: Mapping[str, str]
    """What a run that goes on from here must have in common with this one."""


class Record(Protocol):
    """Where a run writes down what it did."""

    @property
    def store(self) -> Store:
        """Where personal parts are kept."""
        ...

    def close(self) -> None:
        """Let go of what the record holds open."""
        ...

    def last(self) -> Commit | None:
        """Return the last commit, None in a new run."""
        ...

    def state(self) -> State | None:
        """Return the server's state at the last commit, None in a new run."""
        ...

    def commit(self, commit: Commit, state: State, line: Row, rows: Sequence[Row]) -> None:
        """Write down a round: the server's state, its line for the curves, rows for the devices."""
        ...

    def save_shared(self, name: str, params: Params) -> None:
        """Keep tensors that are not any device's own."""
        ...

    def load_shared(self, name: str) -> dict[str, Tensor]:
        """Return tensors that were saved."""
        ...

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all devices, in the order of the commits."""
        ...

    def finish(self, columns: Mapping[str, type], rows: Iterable[Row], summary: Summary) -> None:
        """Write what is only known at the end."""
        ...

    def summary(self) -> Summary | None:
        """Return the summary of a finished run, None before."""
        ...

    def devices(self) -> Table:
        """Return the finished table of devices."""
        ...


class FolderRecord:
    """A run's folder; one process at a time may write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY)
        self._state: State | None = None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._committed = self._read_commit()
            (folder / "shared").mkdir(exist_ok=True)
            self.store = DiskStore(folder / "personal")
            for journal in _JOURNALS:
                self._cut(journal)
            self._tidy()
        except BlockingIOError:
            self.close()
            raise InUse(f"Another process is writing the run in `{folder}`.") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes write the folder."""
        os.close(self._lock)

    def last(self) -> Commit | None:
        """Return what `commit.json` says."""
        if not self._committed:
            return None
        return Commit(**{name: self._committed[name] for name in Commit.__dataclass_fields__})

    def state(self) -> State | None:
        """Read the checkpoint of the last commit."""
        if not self._committed:
            return None
        shared, optimizer = (self._read_checkpoint(kind) for kind in _CHECKPOINTS)
        self._state = State(shared=shared, optimizer=optimizer)
        return self._state

    def commit(self, commit: Commit, state: State, line: Row, rows: Sequence[Row]) -> None:
        """Write everything, then rename `commit.json`: that is the commit."""
        sizes = {
            f"{journal}_bytes": self._append(journal, lines)
            for journal, lines in zip(_JOURNALS, ([line], rows), strict=True)
        }
        self._write_commit({**asdict(commit), **sizes, **self._checkpoints(commit, state)})

    def save_shared(self, name: str, params: Params) -> None:
        """Write `shared/NAME.safetensors`."""
        replace_file(self._shared(name), to_bytes(params))

    def load_shared(self, name: str) -> dict[str, Tensor]:
        """Read `shared/NAME.safetensors`."""
        return from_bytes(self._shared(name).read_bytes())

    def rows(self) -> Iterator[Row]:
        """Read the rows that were committed."""
        with self._journal("devices").open() as lines:
            yield from map(json.loads, lines)

    def finish(self, columns: Mapping[str, type], rows: Iterable[Row], summary: Summary) -> None:
        """Write `devices.parquet` and `summary.json`, and remove what only an unfinished run needs."""
        scratch = self.folder / "devices.parquet.tmp"
        write_table(scratch, rows, columns)
        with scratch.open("rb") as written:
            sync_file(written.fileno())
        scratch.replace(self.folder / "devices.parquet")
        replace_file(self.folder / "summary.json", json.dumps(summary, indent=1).encode())
        digests = {kind: {"digest": self._committed[kind]["digest"]} for kind in _CHECKPOINTS}
        self._write_commit({**self._committed, **digests, "finished": True})
        self._tidy()

    def summary(self) -> Summary | None:
        """Read `summary.json`, None where the run is not finished."""
        if not self._committed.get("finished"):
            return None
        try:
            return json.loads((self.folder / "summary.json").read_bytes())
        except ValueError:
            raise ConfigError(f"`{self.folder / 'summary.json'}` is damaged: it is not JSON.") from None

    def devices(self) -> Table:
        """Read `devices.parquet`."""
        return read_table(self.folder / "devices.parquet")

    def _shared(self, name: str) -> Path:
        return self.folder / "shared" / f"{name}.safetensors"

    def _journal(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _read_commit(self) -> dict[str, Any]:
        path = self.folder / "commit.json"
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            self._check_new()
            if any((self.folder / "personal").glob("*.safetensors")):
                raise ConfigError(
                    f"`{self.folder}` has personal parts, but its `commit.json` is gone."
                ) from None
            return {}
        except ValueError:
            raise ConfigError(f"`{path}` is damaged: it is not JSON.") from None

    def _check_new(self) -> None:
        """Raise where a folder without a commit holds what no run writes: it is somebody else's."""
        ours = _FILES | _FOLDERS | {f"{name}.tmp" for name in _FILES}
        names = {path.name for path in self.folder.iterdir()}
        if foreign := sorted(name for name in names - ours if not _CHECKPOINT.fullmatch(name)):
            raise ConfigError(f"`{self.folder}` is no run's folder: it holds `{foreign[0]}`.")

    def _write_commit(self, content: dict[str, Any]) -> None:
        before, self._committed = self._committed, content
        replace_file(self.folder / "commit.json", json.dumps(content, indent=1).encode())
        for kind in _CHECKPOINTS:
            if kind in before and before[kind] != content[kind]:
                (self.folder / before[kind]["file"]).unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove what a kill may have left: files that no commit names."""
        named = {self._committed.get(kind, {}).get("file") for kind in _CHECKPOINTS}
        for path in self.folder.iterdir():
            if _CHECKPOINT.fullmatch(path.name) and path.name not in named:
                path.unlink()
        scratches = {self.folder / f"{name}.tmp" for name in _FILES} & set(self.folder.iterdir())
        for scratch in (*scratches, *(self.folder / "shared").glob("*.safetensors.tmp")):
            scratch.unlink()
        if self._committed.get("finished"):
            self._journal("devices").unlink(missing_ok=True)

    def _cut(self, journal: str) -> None:
        """Drop the lines past the last commit."""
        path = self._journal(journal)
        if path.exists():
            os.truncate(path, self._committed.get(f"{journal}_bytes", 0))

    def _append(self, journal: str, lines: Iterable[Row]) -> int:
        """Append lines to a journal and return its size, which is on disk then."""
        with self._journal(journal).open("a") as file:
            file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
            file.flush()
            sync_file(file.fileno())
            return file.tell()

    def _checkpoints(self, commit: Commit, state: State) -> dict[str, Any]:
        """Write the server's state, unless it is the one of the last commit."""
        if state is self._state:
            return {kind: self._committed[kind] for kind in _CHECKPOINTS}
        self._state = state
        written: dict[str, Any] = {}
        for kind in _CHECKPOINTS:
            content = to_bytes(getattr(state, kind))
            name = f"checkpoint-{commit.number}-{kind}.safetensors"
            write_file(self.folder / name, content)
            written[kind] = {"file": name, "digest": hashlib.sha256(content).hexdigest()}
        return written

    def _read_checkpoint(self, kind: str) -> dict[str, Tensor]:
        entry = self._committed[kind]
        content = (self.folder / entry["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["digest"]:
            raise ConfigError(f"`{self.folder / entry['file']}` is damaged: it is not what was committed.")
        return from_bytes(content)


class MemoryRecord:
    """A run that leaves nothing behind but its result."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lines: list[Row] = []
        self._rows: list[Row] = []
        self._shared: dict[str, Params] = {}
        self._columns: Mapping[str, type] = {}
        self._summary: Summary | None = None

    def close(self) -> None:
        """Do nothing: nobody else can write here."""

    def last(self) -> Commit | None:
        """Return None: every run in memory is new."""
        return None

    def state(self) -> State | None:
        """Return None."""
        return None

    def commit(self, commit: Commit, state: State, line: Row, rows: Sequence[Row]) -> None:
        """Keep the line and the rows."""
        self.lines.append(line)
        self._rows += rows

    def save_shared(self, name: str, params: Params) -> None:
        """Keep a copy."""
        self._shared[name] = cloned(params)

    def load_shared(self, name: str) -> dict[str, Tensor]:
        """Return a copy."""
        return cloned(self._shared[name])

    def rows(self) -> Iterator[Row]:
        """Yield the rows."""
        yield from self._rows

    def finish(self, columns: Mapping[str, type], rows: Iterable[Row], summary: Summary) -> None:
        """Keep the rows and the summary."""
        self._columns, self._rows, self._summary = columns, list(rows), summary

    def summary(self) -> Summary | None:
        """Return the summary, None before the end."""
        return self._summary

    def devices(self) -> Table:
        """Return the rows as a table."""
        return table_of(self._rows, self._columns)
