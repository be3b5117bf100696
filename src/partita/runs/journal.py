"""Writing a run in its folder: every round committed.

A round is committed by one rename, that of `commit.json`. Everything that belongs to the round is on disk
before; after it only the personal parts of counted devices move to their places, and doing that twice does no
harm. So a run that is killed at any moment resumes from its last committed round.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from partita.data.arrow import write_table
from partita.durable import (
    append_file,
    close_lock,
    make_folder,
    move_file,
    open_lock,
    replace_file,
    sync_file,
    sync_folder,
    write_file,
)
from partita.errors import ConfigError, InUse
from partita.params import Params, from_bytes, to_bytes
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.frozen import bytes_without
from partita.server.round import State
from partita.training.evaluation import DeviceRow, Summary
from partita.training.journal import Commit, RoundRow

_CHECKPOINTS = ("shared", "optimizer")
_BEST = "best_shared"
"""The entry of `commit.json` for u after the best round, where training may stop early."""


class FolderJournal:
    """The journal of a run in its folder; one process at a time may hold it.

    Args:
        folder: the run's folder.
        fingerprint: the settings that must not change on resume, by name.
        frozen: the frozen tensors of the pretrained model that came unchanged from a file, with their names
            there.
        trained: the finished run whose shared tensors are read, for an onboarding; None: the run's own.

    Raises:
        InUse: another process is writing the run.
        ConfigError: the folder is not a run's, or is damaged, or was started with another fingerprint.
    """

    def __init__(
        self,
        folder: RunFolder,
        fingerprint: Mapping[str, str] | None = None,
        *,
        frozen: Mapping[str, str] | None = None,
        trained: RunFolder | None = None,
    ) -> None:
        self.folder = folder
        self._trained = trained or folder
        self._frozen = frozen or {}
        self._fingerprint = dict(fingerprint or {})
        self._state: State | None = None
        make_folder(folder.path, exist_ok=True)
        self._lock = open_lock(folder.path)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._committed = self._check_folder()
            self._check_fingerprint()
            self._truncate()
            self._tidy()
            folder.shared_folder.mkdir(exist_ok=True)
            folder.personal_folder.mkdir(exist_ok=True)
        except BlockingIOError:
            close_lock(self._lock)
            raise InUse(f"Another process is writing the run in `{folder.path}`.") from None
        except BaseException:
            close_lock(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock on the folder."""
        close_lock(self._lock)

    def last(self) -> Commit | None:
        """Return the last commit."""
        if not self._committed:
            return None
        return Commit(**{field.name: self._committed[field.name] for field in fields(Commit)})

    def state(self) -> State | None:
        """Return the checkpoint of the last commit."""
        if self._state is None and self._committed:
            shared, optimizer = (self._read_checkpoint(kind) for kind in _CHECKPOINTS)
            self._state = State(shared=shared, optimizer=optimizer, steps=self._committed["steps"])
        return self._state

    def best(self) -> dict[str, Tensor]:
        """Return the checkpoint of the best round."""
        return self._read_checkpoint(_BEST)

    def commit(self, commit: Commit, state: State, line: RoundRow, rows: Sequence[DeviceRow]) -> None:
        """Write everything, then rename `commit.json`: that is the commit."""
        sizes = {
            "rounds_bytes": _append(self.folder.rounds_file, [line]),
            "devices_bytes": _append(self.folder.rows_file, rows),
        }
        checkpoints = self._write_checkpoints(commit, state)
        if commit.best is not None:
            is_new = (commit.stage, commit.best) != (self._committed["stage"], self._committed["best"])
            checkpoints[_BEST] = checkpoints["shared"] if is_new else self._committed[_BEST]
        if self.folder.skipped_file.exists():
            sync_file(self.folder.skipped_file)
        sync_folder(self.folder.path)
        self._write_commit({**asdict(commit), "fingerprint": self._fingerprint, **sizes, **checkpoints})

    def save_shared(self, name: str, params: Params) -> None:
        """Write `shared/NAME.safetensors`."""
        frozen = self._frozen if name == Stage.PRETRAINED else {}
        replace_file(self.folder.shared_file(name), bytes_without(params, frozen))

    def shared(self, name: str) -> dict[str, Tensor]:
        """Read `shared/NAME.safetensors`, without the frozen tensors of a file: the task's model has them."""
        return from_bytes(self._trained.shared_file(name).read_bytes())

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of all committed rounds but those of unseen devices, none in a new run."""
        return self.folder.rounds() if self._committed else iter(())

    def onboarding(self) -> Iterator[RoundRow]:
        """Yield the lines of the committed rounds of unseen devices, none in a new run."""
        return self.folder.onboarding() if self._committed else iter(())

    def rows(self) -> Iterator[DeviceRow]:
        """Yield the committed measurements by device."""
        return self.folder.rows()

    def finish(self, columns: Mapping[str, type], rows: Iterable[DeviceRow], summary: Summary) -> None:
        """Write `devices.parquet` and `summary.json`, and delete what only an unfinished run needs."""
        scratch = _scratch(self.folder.devices_file)
        write_table(scratch, rows, columns)
        move_file(scratch, self.folder.devices_file)
        replace_file(self.folder.summary_file, json.dumps(summary, indent=1).encode())
        digests = {kind: {"digest": self._committed[kind]["digest"]} for kind in _CHECKPOINTS}
        kept = {key: value for key, value in self._committed.items() if key != _BEST}
        self._write_commit({**kept, **digests, "finished": True})
        self._tidy()

    def finished(self) -> Summary | None:
        """Return the summary of a finished run, None before the end."""
        return self.folder.summary if self._committed.get("finished") else None

    def _check_folder(self) -> dict[str, Any]:
        """Return the content of `commit.json`, nothing in a new run.

        Raises:
            ConfigError: a folder without a commit holds files that no run writes, or personal parts.
        """
        folder = self.folder
        if (committed := folder.commit) is not None:
            return committed
        known = {path.name for path in (*folder.files, *folder.folders)}
        known |= {_scratch(path).name for path in folder.files}
        names = sorted(path.name for path in folder.path.iterdir())
        if foreign := [name for name in names if name not in known and not folder.is_checkpoint(name)]:
            raise ConfigError(f"`{folder.path}` is not a run's folder: it contains `{foreign[0]}`.")
        if any(folder.personal_folder.glob("*.safetensors")):
            raise ConfigError(
                f"`{folder.path}` has personal parts, but `{folder.commit_file.name}` is missing."
            )
        return {}

    def _check_fingerprint(self) -> None:
        """Raise where the run was started with other settings than this one's."""
        if not self._committed or not self._fingerprint:
            return
        recorded = self._committed["fingerprint"]
        names = {**self._fingerprint, **recorded}
        if changed := [name for name in names if recorded.get(name) != self._fingerprint.get(name)]:
            raise ConfigError(
                f"The run in `{self.folder.path}` was started with other values of "
                f"{', '.join(f'`{name}`' for name in changed)}, or by another version of Partita: resume it "
                "with the same values and version, or start a new run."
            )

    def _truncate(self) -> None:
        """Drop the lines past the last commit."""
        journals = {"rounds_bytes": self.folder.rounds_file, "devices_bytes": self.folder.rows_file}
        for key, path in journals.items():
            if path.exists():
                os.truncate(path, self._committed.get(key, 0))

    def _tidy(self) -> None:
        """Delete what a kill may have left: files that no commit names."""
        named = _files(self._committed)
        scratch = {_scratch(path).name for path in self.folder.files}
        for path in self.folder.path.iterdir():
            if path.name in scratch or (self.folder.is_checkpoint(path.name) and path.name not in named):
                path.unlink()
        for path in self.folder.shared_folder.glob("*.safetensors.tmp"):
            path.unlink()
        if self._committed.get("finished"):
            self.folder.rows_file.unlink(missing_ok=True)
            shutil.rmtree(self.folder.reuse_folder, ignore_errors=True)

    def _write_commit(self, content: dict[str, Any]) -> None:
        before, self._committed = self._committed, content
        replace_file(self.folder.commit_file, json.dumps(content, indent=1).encode())
        for name in _files(before) - _files(content):
            (self.folder.path / name).unlink(missing_ok=True)

    def _write_checkpoints(self, commit: Commit, state: State) -> dict[str, Any]:
        """Write the server's state, unless it is the one of the last commit."""
        if state is self._state:
            return {kind: self._committed[kind] for kind in _CHECKPOINTS}
        self._state = state
        written: dict[str, Any] = {}
        for kind in _CHECKPOINTS:
            path, content = self.folder.checkpoint_file(commit.number, kind), to_bytes(getattr(state, kind))
            write_file(path, content)
            written[kind] = {"file": path.name, "digest": hashlib.sha256(content).hexdigest()}
        return written

    def _read_checkpoint(self, kind: str) -> dict[str, Tensor]:
        entry = self._committed[kind]
        path = self.folder.path / entry["file"]
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["digest"]:
            raise ConfigError(f"`{path}` is damaged: its digest is not the one that was committed.")
        return from_bytes(content)


def _files(content: Mapping[str, Any]) -> set[str]:
    """Return the checkpoints that the content of a `commit.json` names."""
    entries = (content.get(kind, {}) for kind in (*_CHECKPOINTS, _BEST))
    return {entry["file"] for entry in entries if "file" in entry}


def _scratch(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> int:
    """Append lines to a file and return its size, which is on disk then."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    return append_file(path, text.encode())
