"""What went wrong in a finished run without ending it: devices that failed, or could not be measured."""

import json
from collections.abc import Sequence
from pathlib import Path

from partita.data.arrow import read_table
from partita.data.rows import SkippedRow, read_skipped
from partita.protocol import Stage
from partita.training.evaluation import Summary

_SHOWN = 3


def troubles_of(folder: Path, summary: Summary) -> list[str]:
    """Return a sentence for each kind of trouble in a run's folder; none where all went well."""
    failed: dict[str, str] = {}
    evaluated = 0
    with (folder / "rounds.jsonl").open() as lines:
        for line in map(json.loads, lines):
            failed |= line["failed"]
            if line["stage"] == Stage.PRETRAINED and line["work"] == "evaluate" and line["final"]:
                evaluated += len(line["asked"])
    troubles: list[str] = []
    if failed:
        shown = "; ".join(f"{device}: {reason}" for device, reason in list(failed.items())[:_SHOWN])
        more = "; and more in `rounds.jsonl`" if len(failed) > _SHOWN else ""
        troubles.append(f"{_devices(len(failed))} failed in some round ({shown}{more})")
    measured = min((numbers["devices"] for numbers in summary["stages"].values()), default=0)
    if measured < evaluated:
        split = summary.get("split", "test")
        why = _reason(folder, split)
        troubles.append(f"{_devices(evaluated - measured)} without a {split} {summary['metric']} ({why})")
    if skipped := read_skipped(folder / "skipped.jsonl"):
        troubles.append(left_out(skipped))
    return troubles


def left_out(skipped: Sequence[SkippedRow]) -> str:
    """Return how many bad rows were left out, and the first of them."""
    rows = "1 bad row was" if len(skipped) == 1 else f"{len(skipped)} bad rows were"
    return f"{rows} left out ({skipped[0]})"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"


def _reason(folder: Path, split: str) -> str:
    """Return why a device has no metric on a split, by the first of them."""
    table = read_table(folder / "devices.parquet").select(["device", "split", "metric", "reason"])
    for row in table.to_pylist():
        if row["split"] == split and row["metric"] is None:
            return f"{row['device']}: {row['reason']}"
    return f"no {split} examples"
