"""Importing a public data set: its devices surveyed, their rows written, and going on where it stopped."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.data.importers.source import Source, Survey, Tick
from partita.data.sort import check_new
from partita.data.writing import TableWriter, copy_tables, schema_of
from partita.durable import replace_file
from partita.errors import ConfigError
from partita.protocol import DeviceId

_DEVICES = 200
"""Devices in a part: what an import that was stopped has to do again at most."""


@dataclass(frozen=True)
class Imported:
    """What an import gave."""

    survey: Survey
    rows: int

    def lines(self) -> list[str]:
        """Return what was kept and dropped, and how that compares with the paper, a line each."""
        kept = len(self.survey.devices)
        told = [f"Kept {kept:,} device{'s' * (kept != 1)} with {self.rows:,} rows."]
        told += [f"Dropped {count:,}: {why}." for why, count in self.survey.dropped.items() if count]
        paper = self.survey.paper
        if paper is not None:
            same = "as the paper has" if kept == paper else f"the paper has {paper:,}"
            told.append(f"{kept:,} devices: {same}.")
        return told


def import_source(source: Source, out: Path, tick: Tick, *, about: str) -> Imported:
    """Write the devices of a source to `out`, a Parquet table in the order of their ids.

    What is done is kept in a folder beside `out` until all of it is: an import that was stopped goes on.

    Args:
        source: what to read.
        out: the table to write.
        tick: told of the progress.
        about: what the source is made of; an import with another text begins anew.
    """
    check_new(out)
    survey = source.survey(tick)
    if not survey.devices:
        dropped = "; ".join(f"{count:,} {why}" for why, count in survey.dropped.items() if count)
        raise ConfigError(f"No device is left to import ({dropped or 'the source has none'}).")
    parts = out.with_name(f"{out.name}.parts")
    state = _State(parts, _digest(about, survey.devices))
    for number, begin in enumerate(range(0, len(survey.devices), _DEVICES)):
        devices = survey.devices[begin : begin + _DEVICES]
        tick(begin, len(survey.devices))
        if number >= state.done:
            state.add(_write_part(source, devices, parts / f"{number:06}.parquet"))
    tick(len(survey.devices), len(survey.devices))
    whole = out.with_name(f"{out.name}.tmp")
    copy_tables((parts / f"{number:06}.parquet" for number in range(state.done)), whole)
    whole.replace(out)
    shutil.rmtree(parts)
    return Imported(survey, state.rows)


def _write_part(source: Source, devices: Sequence[DeviceId], path: Path) -> int:
    rows = 0
    with TableWriter(path, schema_of(source.columns)) as writer:
        for device in devices:
            own = [{"device": device, **row} for row in source.rows(device)]
            writer.add_rows(own)
            rows += len(own)
    return rows


def _digest(*texts: str | Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts, default=list).encode()).hexdigest()


class _State:
    """How many parts of an import are whole on disk; begun anew where they are another import's."""

    def __init__(self, folder: Path, digest: str) -> None:
        self._path = folder / "state.json"
        self._digest = digest
        self.done = 0
        self.rows = 0
        known = self._read()
        if known.get("digest") == digest:
            self.done, self.rows = known["done"], known["rows"]
        elif folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}

    def add(self, rows: int) -> None:
        """Write down that one more part is whole."""
        self.done += 1
        self.rows += rows
        values = {"digest": self._digest, "done": self.done, "rows": self.rows}
        replace_file(self._path, json.dumps(values).encode())
