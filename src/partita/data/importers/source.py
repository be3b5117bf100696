"""A public dataset as a `Source` of devices and rows, and its import into one Parquet table.

An import that was interrupted resumes where it stopped.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from partita.data.writing import (
    SCRATCH,
    STATE,
    ColumnKind,
    ProgressFn,
    TableWriter,
    clear,
    copy_tables,
    importing,
    publish,
    schema_of,
)
from partita.durable import replace_file, sync_file
from partita.errors import ConfigError, RunFailed
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
"""A row by column: `split`, either `train` or `test`, and the content."""
_DEVICES_PER_PART = 200
"""Devices in a part: the maximum that an interrupted import has to import again."""


@dataclass(frozen=True)
class Survey:
    """The devices of a dataset that are kept, determined before any row is read."""

    devices: Sequence[DeviceId]
    """The kept devices, sorted by id."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """The number of dropped devices, by reason."""
    paper: int | None = None
    """The number of devices that the paper keeps of the whole dataset."""


class Source(Protocol):
    """A public dataset in its own files."""

    @property
    def columns(self) -> Mapping[str, ColumnKind]:
        """The columns of content, without `device` and `split`."""
        ...

    def survey(self, progress: ProgressFn) -> Survey:
        """Return the devices to keep, reading as little as possible."""
        ...

    def rows(self, device: DeviceId) -> Iterator[Row]:
        """Yield the rows of one device."""
        ...


@dataclass(frozen=True)
class Imported:
    """The result of an import."""

    survey: Survey
    rows: int

    def lines(self) -> list[str]:
        """Return lines about the devices kept, those dropped, and the number of devices in the paper."""
        kept = len(self.survey.devices)
        lines = [f"Kept {kept:,} device{'s' * (kept != 1)} with {self.rows:,} rows."]
        lines += [f"Dropped {count:,}: {why}." for why, count in self.survey.dropped.items() if count]
        paper = self.survey.paper
        if paper is not None:
            same = "as in the paper" if kept == paper else f"the paper has {paper:,}"
            lines.append(f"{kept:,} devices: {same}.")
        return lines


def import_source(source: Source, out: Path, progress: ProgressFn, *, about: str) -> Imported:
    """Write the devices of a source to `out`, a Parquet table sorted by device id.

    Finished parts are kept in a folder beside `out` until the import is complete, and an interrupted import
    resumes after them.

    Args:
        source: the dataset.
        out: the table to write.
        progress: the progress callback.
        about: a description of the source and its settings; parts with another one are discarded.

    Raises:
        ConfigError: `out` exists, or no device is kept.
        InUse: another process is writing `out`.
        RunFailed: a finished part was changed meanwhile.
    """
    with importing(out) as folder:
        survey = source.survey(progress)
        if not survey.devices:
            dropped = "; ".join(f"{count:,} {why}" for why, count in survey.dropped.items() if count)
            raise ConfigError(f"There is no device to import ({dropped or 'the source has none'}).")
        parts = _Parts(folder, _digest(about, survey.devices))
        parts.resume()
        _write_parts(source, survey.devices, parts, progress)
        whole = folder / f"whole{SCRATCH}"
        copy_tables(parts.checked(), whole)
        publish(whole, out)
    return Imported(survey, parts.rows)


def _write_parts(source: Source, devices: Sequence[DeviceId], parts: "_Parts", progress: ProgressFn) -> None:
    """Write the parts that are not finished or are damaged."""
    for number, begin in enumerate(range(0, len(devices), _DEVICES_PER_PART)):
        progress(begin, len(devices))
        if not parts.is_finished(number):
            own = devices[begin : begin + _DEVICES_PER_PART]
            parts.commit(number, _write_part(source, own, parts.path(number)))
    progress(len(devices), len(devices))


def _write_part(source: Source, devices: Sequence[DeviceId], path: Path) -> int:
    """Write the rows of some devices, and return their number."""
    count = 0
    with TableWriter(path, schema_of(source.columns)) as writer:
        for device in devices:
            rows = [{"device": device, **row} for row in source.rows(device)]
            writer.add_rows(rows)
            count += len(rows)
    return count


def _digest(*values: str | Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(values, default=list).encode()).hexdigest()


class _Parts:
    """The finished parts of an import, each with its digest; `digest` identifies the import."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder
        self._digest = digest
        self._finished: list[dict[str, Any]] = []

    @property
    def rows(self) -> int:
        """The number of rows in all finished parts."""
        return sum(part["rows"] for part in self._finished)

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self._folder / f"part-{number:06}{SCRATCH}"

    def resume(self) -> None:
        """Continue after the finished parts of this import, in place; delete those of another one."""
        state = self._read_state()
        if state.get("digest") == self._digest:
            self._finished = state["parts"]
        else:
            clear(self._folder)

    def is_finished(self, number: int) -> bool:
        """Return whether a part has been written and is as it was written."""
        if number >= len(self._finished):
            return False
        if not self._is_intact(number):
            logger.warning("`%s` has changed since it was written: importing it again.", self.path(number))
            return False
        return True

    def commit(self, number: int, rows: int) -> None:
        """Record, in place and on disk, that a part is finished."""
        sync_file(self.path(number))
        self._finished[number : number + 1] = [{"rows": rows, "sha256": _digest_of(self.path(number))}]
        values = {"digest": self._digest, "parts": self._finished}
        replace_file(self._folder / STATE, json.dumps(values).encode())

    def checked(self) -> Iterator[Path]:
        """Yield the files of all parts, each when it has been checked.

        Raises:
            RunFailed: one has changed since it was written.
        """
        for number in range(len(self._finished)):
            if not self._is_intact(number):
                raise RunFailed(
                    f"`{self.path(number)}` has changed since it was written: run the same command again."
                )
            yield self.path(number)

    def _is_intact(self, number: int) -> bool:
        try:
            return _digest_of(self.path(number)) == self._finished[number]["sha256"]
        except FileNotFoundError:
            return False

    def _read_state(self) -> dict[str, Any]:
        try:
            return json.loads((self._folder / STATE).read_bytes())
        except (OSError, ValueError):
            return {}


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
