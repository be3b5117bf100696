"""Writing a run in its folder: every round committed.

A round is committed by one rename, that of `commit.json`. Everything that belongs to the round is on disk
before; after it only the personal parts of counted devices move to their places, and doing that twice does no
harm. So a run that is killed at any moment resumes from its last committed round.
"""

import fcntl
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from partita.data.arrow import write_table
from partita.device.store import DiskStore
from partita.durable import (
    close_lock,
    make_folder,
    make_private_folder,
    move_file,
    open_lock,
    replace_file,
    sync_folder,
    write_file,
)
from partita.errors import ConfigError, InUse
from partita.params import Params, from_bytes, to_bytes
from partita.protocol import DeviceId, Stage
from partita.runs.folder import RunFolder
from partita.runs.frozen import bytes_without
from partita.runs.logs import Log
from partita.runs.opening import check_fingerprint, committed_in, scratch_of
from partita.runs.parts import KEEPING, RESETS, Reset, check_parts, resets_in
from partita.runs.recorded import BEST, CHECKPOINTS, FILES, JOURNALS, Recorded, checkpoints_in
from partita.runs.tensors import content_of
from partita.seals import sealed_json, sha256, sha256_of
from partita.server.round import State
from partita.training.evaluation import DeviceRow, Summary
from partita.training.journal import Commit, RoundRow


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
            self._committed = committed_in(folder)
            check_fingerprint(folder, self._committed, self._fingerprint)
            recorded = Recorded(folder.path, self._committed)
            self._files = dict(recorded.files)
            self._check_files(recorded)
            self._logs = {path: Log(path, recorded) for path in self._growing}
            self._tidy()
            folder.shared_folder.mkdir(exist_ok=True)
            make_private_folder(folder.personal_folder)
        except BlockingIOError:
            close_lock(self._lock)
            raise InUse(f"the run in `{folder.path}`") from None
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
            shared, optimizer = (self._read_checkpoint(kind) for kind in CHECKPOINTS)
            self._state = State(shared=shared, optimizer=optimizer, steps=self._committed["steps"])
        return self._state

    def best(self) -> dict[str, Tensor]:
        """Return the checkpoint of the best round."""
        return self._read_checkpoint(BEST)

    def commit(self, commit: Commit, state: State, line: RoundRow, rows: Sequence[DeviceRow]) -> None:
        """Write everything, then rename `commit.json`: that is the commit."""
        self._logs[self.folder.rounds_file].append([line])
        self._logs[self.folder.rows_file].append(rows)
        checkpoints = self._write_checkpoints(commit, state)
        if commit.best is not None:
            is_new = (commit.stage, commit.best) != (self._committed["stage"], self._committed["best"])
            checkpoints[BEST] = checkpoints["shared"] if is_new else self._committed[BEST]
        self._logs[self.folder.skipped_file].catch_up()
        sync_folder(self.folder.path)
        self._record(self.folder.costs_file, self.folder.derived_file)
        further = {"fingerprint": self._fingerprint, KEEPING: self._keeping(commit), **checkpoints}
        resets = {RESETS: self._committed[RESETS]} if RESETS in self._committed else {}
        self._write_commit({**asdict(commit), **further, **resets})

    def _keeping(self, commit: Commit) -> dict[str, bool]:
        """Return the stages so far, and whether all counted devices have kept something in each."""
        known, store = dict(self._committed.get(KEEPING, {})), DiskStore(self.folder.personal_folder)
        if commit.counted:
            has_saved = all(store.has_saved(device, commit.label) for device in commit.counted)
            known[commit.stage] = known.get(commit.stage, True) and has_saved
        return known

    def _record(self, *paths: Path) -> None:
        """Record the digests of files, in place; of those that are recorded already they stay."""
        for path in paths:
            name = path.relative_to(self.folder.path).as_posix()
            if name not in self._files and path.exists():
                self._files[name] = sha256_of(path)

    def save_shared(self, name: str, params: Params) -> None:
        """Write `shared/NAME.safetensors`."""
        frozen = self._frozen if name == Stage.PRETRAINED else {}
        path, content = self.folder.shared_file(name), bytes_without(params, frozen)
        replace_file(path, content)
        self._files[path.relative_to(self.folder.path).as_posix()] = sha256(content)

    def shared(self, name: str) -> dict[str, Tensor]:
        """Read `shared/NAME.safetensors`, without the frozen tensors of a file: the task's model has them."""
        if self._trained is not self.folder:
            return from_bytes(content_of(self._trained, self._trained.shared_file(name)))
        recorded = Recorded(self.folder.path, {FILES: self._files})
        return from_bytes(recorded.content(self.folder.shared_file(name)))

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
        scratch = scratch_of(self.folder.devices_file)
        write_table(scratch, rows, columns)
        move_file(scratch, self.folder.devices_file)
        replace_file(self.folder.summary_file, json.dumps(summary, indent=1).encode())
        self._files |= {
            path.name: sha256_of(path) for path in (self.folder.devices_file, self.folder.summary_file)
        }
        self._logs[self.folder.skipped_file].catch_up()
        del self._logs[self.folder.rows_file]
        digests = {kind: {"digest": self._committed[kind]["digest"]} for kind in CHECKPOINTS}
        kept = {key: value for key, value in self._committed.items() if key != BEST}
        self._write_commit({**kept, **digests, "finished": True})
        self._tidy()

    def reset(self, devices: Sequence[DeviceId]) -> None:
        """Let devices start again that have lost what they kept: it is deleted, and recorded.

        Raises:
            ConfigError: the run is finished or has no committed round, or no such device was in it.
        """
        folder, count = self.folder, self._count_rounds()
        if self._committed.get("finished") or not count:
            why = "is finished" if count else "has no committed round"
            raise ConfigError(f"The run in `{folder.path}` {why}: no device of it can start again.")
        asked = {device for line in folder.lines() for device in line["asked"]}
        for device in devices:
            if device not in asked:
                raise ConfigError(f"No round of the run in `{folder.path}` asked a device {device!r}.")
        new = [asdict(Reset(device=device, rounds=count)) for device in devices]
        self._write_commit({**self._committed, RESETS: [*self._committed.get(RESETS, ()), *new]})
        self._forget_reset()

    def check_parts(self, store: DiskStore) -> None:
        """Finish the last commit of an unfinished run, and raise if a personal part is not of its round."""
        if self._committed and not self._committed.get("finished"):
            check_parts(self._committed, self.folder.lines, store)

    def _forget_reset(self) -> None:
        """Delete what devices keep that have started again since the last round."""
        resets, count = resets_in(self._committed), self._count_rounds() if RESETS in self._committed else 0
        for reset in resets:
            if reset.rounds == count:
                DiskStore(self.folder.personal_folder).forget(reset.device)

    def _count_rounds(self) -> int:
        return sum(1 for _ in self.folder.lines()) if self._committed else 0

    def finished(self) -> Summary | None:
        """Return the summary of a finished run, None before the end."""
        return self.folder.summary if self._committed.get("finished") else None

    @property
    def _growing(self) -> list[Path]:
        """The files that grow with every round; the measurements are in a table when a run is finished."""
        rows = [] if self._committed.get("finished") else [self.folder.rows_file]
        return [self.folder.rounds_file, *rows, self.folder.skipped_file]

    def _check_files(self, recorded: Recorded) -> None:
        """Raise if a file that the last commit has recorded is damaged or missing."""
        for name in recorded.files:
            recorded.check(self.folder.path / name)

    def _tidy(self) -> None:
        """Delete what a kill may have left: files that no commit names."""
        named = checkpoints_in(self._committed)
        scratch = {scratch_of(path).name for path in self.folder.files}
        for path in self.folder.path.iterdir():
            if path.name in scratch or (self.folder.is_checkpoint(path.name) and path.name not in named):
                path.unlink()
        for path in self.folder.shared_folder.glob("*.safetensors.tmp"):
            path.unlink()
        self._forget_reset()
        if self._committed.get("finished"):
            self.folder.rows_file.unlink(missing_ok=True)
            shutil.rmtree(self.folder.reuse_folder, ignore_errors=True)

    def _write_commit(self, content: dict[str, Any]) -> None:
        journals = {path.name: log.entry for path, log in self._logs.items() if log.size}
        content = {**content, FILES: dict(sorted(self._files.items())), JOURNALS: journals}
        before, self._committed = self._committed, content
        replace_file(self.folder.commit_file, sealed_json(content))
        for name in checkpoints_in(before).keys() - checkpoints_in(content).keys():
            (self.folder.path / name).unlink(missing_ok=True)

    def _write_checkpoints(self, commit: Commit, state: State) -> dict[str, Any]:
        """Write the server's state, unless it is the one of the last commit."""
        if state is self._state:
            return {kind: self._committed[kind] for kind in CHECKPOINTS}
        self._state = state
        written: dict[str, Any] = {}
        for kind in CHECKPOINTS:
            path, content = self.folder.checkpoint_file(commit.number, kind), to_bytes(getattr(state, kind))
            write_file(path, content)
            written[kind] = {"file": path.name, "digest": sha256(content)}
        return written

    def _read_checkpoint(self, kind: str) -> dict[str, Tensor]:
        entry = self._committed[kind]
        path = self.folder.path / entry["file"]
        return from_bytes(content_of(self.folder, path))
