"""A public dataset as a `Source` of devices and rows, and its import into one Parquet table.

An import that was interrupted resumes where it stopped.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from partita.data.writing import ColumnKind, ProgressFn, TableWriter, check_new, copy_tables, schema_of
from partita.durable import replace_file
from partita.errors import ConfigError
from partita.protocol import DeviceId

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
    """
    check_new(out)
    survey = source.survey(progress)
    if not survey.devices:
        dropped = "; ".join(f"{count:,} {why}" for why, count in survey.dropped.items() if count)
        raise ConfigError(f"There is no device to import ({dropped or 'the source has none'}).")
    parts = _Parts(out.with_name(f"{out.name}.parts"), _digest(about, survey.devices))
    parts.resume()
    for number, begin in enumerate(range(0, len(survey.devices), _DEVICES_PER_PART)):
        devices = survey.devices[begin : begin + _DEVICES_PER_PART]
        progress(begin, len(survey.devices))
        if number >= parts.count:
            parts.commit(_write_part(source, devices, parts.path(number)))
    progress(len(survey.devices), len(survey.devices))
    whole = out.with_name(f"{out.name}.tmp")
    copy_tables(map(parts.path, range(parts.count)), whole)
    whole.replace(out)
    parts.delete()
    return Imported(survey, parts.rows)


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
    """The finished parts of an import, in a folder with their number; `digest` identifies the import."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._folder = folder
        self._state_file = folder / "state.json"
        self._digest = digest
        self.count = 0
        self.rows = 0

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self._folder / f"{number:06}.parquet"

    def resume(self) -> None:
        """Continue after the finished parts of this import, in place; delete those of another one."""
        state = self._read_state()
        if state.get("digest") == self._digest:
            self.count, self.rows = state["done"], state["rows"]
        elif self._folder.exists():
            self.delete()
        self._folder.mkdir(exist_ok=True)

    def commit(self, rows: int) -> None:
        """Record, in place and on disk, that one more part is finished."""
        self.count += 1
        self.rows += rows
        values = {"digest": self._digest, "done": self.count, "rows": self.rows}
        replace_file(self._state_file, json.dumps(values).encode())

    def delete(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._folder)

    def _read_state(self) -> dict[str, Any]:
        try:
            return json.loads(self._state_file.read_text())
        except (OSError, ValueError):
            return {}
