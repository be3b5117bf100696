"""The table `failures`: which devices failed in a run, how often, and why."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from partita.report.tables.entries import Entry
from partita.report.tables.table import Table
from partita.runs.folder import RunFolder

_SHOWN = 50
"""Rows of the table, those with most failures."""
_WORK = {"update": "training", "finetune": "fine-tuning", "evaluate": "evaluation"}

Kind = tuple[str, str, str]
"""A device, a stage and what the device was asked to do in it."""


def failures_table(run: RunFolder) -> Table:
    """Return the devices that failed in any round of a finished run; without rows if none did."""
    failed: Counter[Kind] = Counter()
    reasons: dict[Kind, str] = {}
    visits = 0
    for line in _lines(run):
        visits += len(line["asked"])
        for device, reason in line["failed"].items():
            kind = (device, line["stage"], line["work"])
            failed[kind] += 1
            reasons[kind] = reason
    shown = sorted(failed, key=lambda kind: (-failed[kind], kind))[:_SHOWN]
    asked = _asked(run, set(shown))
    rows: list[list[Entry]] = [
        [device, stage, _WORK[work], failed[kind], asked[kind], reasons[kind]]
        for kind in shown
        for device, stage, work in [kind]
    ]
    devices = len({device for device, _, _ in failed})
    return Table(
        name="failures",
        title=f"Failed visits: {failed.total():,} of {visits:,}, of {devices:,} device{'s'[: devices != 1]}",
        columns=["device", "stage", "asked for", "failed", "asked", "last reason"],
        rows=rows,
        notes=_notes(run, len(failed)),
    )


def _lines(run: RunFolder) -> Iterator[Mapping[str, Any]]:
    yield from run.rounds()
    yield from run.onboarding()


def _asked(run: RunFolder, kinds: set[Kind]) -> Counter[Kind]:
    """Return in how many rounds some devices were asked."""
    found: Counter[Kind] = Counter()
    for line in _lines(run):
        every = ((device, line["stage"], line["work"]) for device in line["asked"])
        found.update(kind for kind in every if kind in kinds)
    return found


def _notes(run: RunFolder, kinds: int) -> list[str]:
    if not kinds:
        return []
    notes = [
        "Failed and asked: numbers of rounds. A device that fails is left out of that round, and keeps the "
        "personal part that it had."
    ]
    if kinds > _SHOWN:
        notes.append(
            f"The {_SHOWN} rows with most failures, of {kinds:,}: the others are in `{run.rounds_file.name}`."
        )
    return notes
