"""Warnings about a finished run: devices that failed, devices without a metric, bad rows skipped."""

from partita.data.rows import skipped_text
from partita.protocol import Stage
from partita.runs.folder import RunFolder

_SHOWN = 3
"""Failed devices that a warning lists."""


def warnings_of(run: RunFolder) -> list[str]:
    """Return a sentence, without its full stop, for each kind of problem in a finished run."""
    found = [_failed(run), _unmeasured(run), _unchosen(run)]
    if skipped := run.skipped():
        found.append(skipped_text(skipped))
    return [warning for warning in found if warning]


def _failed(run: RunFolder) -> str:
    """Return which devices failed in any round, and why."""
    reasons: dict[str, str] = {}
    for line in run.rounds():
        reasons |= line["failed"]
    if not reasons:
        return ""
    shown = "; ".join(f"{device}: {reason}" for device, reason in list(reasons.items())[:_SHOWN])
    more = f"; the others are in `{run.rounds_file.name}`" if len(reasons) > _SHOWN else ""
    return f"{_devices(len(reasons))} failed in at least one round ({shown}{more})"


def _unmeasured(run: RunFolder) -> str:
    """Return how many evaluated devices have no metric, and why."""
    finals = (line for line in run.rounds() if line["work"] == "evaluate" and line["final"])
    evaluated = sum(len(line["asked"]) for line in finals if line["stage"] == Stage.PRETRAINED)
    summary = run.summary
    measured = min((stage["devices"] for stage in summary["stages"].values()), default=0)
    if measured >= evaluated:
        return ""
    split = summary.get("split", "test")
    has = "has" if evaluated - measured == 1 else "have"
    return f"{_devices(evaluated - measured)} {has} no {split} {summary['metric']} ({_reason(run, split)})"


def _unchosen(run: RunFolder) -> str:
    """Return which devices could not choose a model, for lack of validation rows."""
    if Stage.SERVED not in run.summary["stages"]:
        return ""
    rows = run.devices.select(["stage", "device", "split"]).to_pylist()
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row["device"], set()).add(row["split"])
    lacking = [device for device, own in splits.items() if "validation" not in own]
    if not lacking:
        return ""
    shown = ", ".join([*lacking[:_SHOWN], *(["..."] if len(lacking) > _SHOWN else [])])
    has = "has" if len(lacking) == 1 else "have"
    return f"{_devices(len(lacking))} {has} no validation rows and did not choose a model ({shown})"


def _reason(run: RunFolder, split: str) -> str:
    """Return why the first device without a metric on a split has none."""
    for row in run.devices.select(["device", "split", "metric", "reason"]).to_pylist():
        if row["split"] == split and row["metric"] is None:
            return f"{row['device']}: {row['reason']}"
    return f"no {split} examples"


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
