"""The curve of a run: a metric over a fixed sample of devices, by training rounds and by bytes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from partita.protocol import DeviceId
from partita.runs.folder import RunFolder
from partita.training.evaluation import Mean, combined_mean
from partita.training.journal import RoundRow


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One evaluation of a run's model."""

    stage: str
    round: int
    """Training rounds of the run so far, over all stages; fine-tuning is none."""
    sent: int
    """Bytes of the run's training so far, up and down, with fine-tuning."""
    mean: float
    """Weighted mean of the metric over the sample."""
    devices: int
    """Number of devices of the sample that were evaluated."""


def curve_of(
    run: RunFolder, metric: str | None = None, *, sample: Collection[DeviceId] | None = None
) -> list[CurvePoint]:
    """Return the evaluations of a finished run in order, all over the same devices.

    The evaluation at the end of a stage covers all evaluated devices: its point has those of the sample only.
    A stage that failed has no points, and neither has an evaluation without the metric.

    Args:
        run: the run.
        metric: name of the metric; None is the headline metric.
        sample: the devices; None is `sample_of(run)`. A run that does not evaluate during training, in a
            comparison for example, can be given the sample of another run.
    """
    summary = run.summary
    column = "metric" if metric in (None, summary["metric"]) else metric
    final = _final_means(run, column, sample_of(run) if sample is None else sample)
    points: list[CurvePoint] = []
    for each in _evaluations(run):
        mean, devices = final.get(each.stage, (None, 0)) if each.is_final else _combined(each.lines, column)
        if mean is not None and each.stage not in summary.get("failed", {}):
            own = {"stage": each.stage, "round": each.round, "sent": each.sent}
            points.append(CurvePoint(**own, mean=mean, devices=devices))
    return points


def sample_of(run: RunFolder) -> frozenset[DeviceId]:
    """Return the devices that a run evaluates during training; all evaluated devices where it does not."""
    during = [each for each in _evaluations(run) if not each.is_final]
    lines = [line for each in during or _evaluations(run) for line in each.lines]
    return frozenset(device for line in lines for device in line["asked"])


def has_curve(run: RunFolder) -> bool:
    """Return whether a run was evaluated during training."""
    return not all(each.is_final for each in _evaluations(run))


def metrics_of(run: RunFolder) -> list[str]:
    """Return the names of the metrics that a run's evaluations have, the headline metric first."""
    lines = [line for each in _evaluations(run) for line in each.lines]
    return [run.summary["metric"], *dict.fromkeys(name for line in lines for name in line.get("metrics", {}))]


def mean_in(line: RoundRow, column: str) -> Mean | None:
    """Return the mean of a metric in the line of an evaluation, with its weight; None if it has none.

    Args:
        line: a line of `rounds.jsonl`, with the devices of one block.
        column: `metric` for the headline metric, or the name of a further metric.
    """
    if column == "metric":
        return (line["metric"], line["weight"]) if "metric" in line else None
    found: Mapping[str, Any] | None = line.get("metrics", {}).get(column)
    return (found["mean"], found["weight"]) if found else None


@dataclass(frozen=True)
class _Evaluation:
    """One evaluation of all devices, in blocks, and the training before it."""

    stage: str
    is_final: bool
    round: int
    sent: int
    lines: Sequence[RoundRow]


def _evaluations(run: RunFolder) -> Sequence[_Evaluation]:
    """Return the evaluations of a run; a file that is unchanged is read once."""
    stat = run.rounds_file.stat()
    return _read(run.rounds_file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Sequence[_Evaluation]:
    found: list[_Evaluation] = []
    rounds = sent = 0
    for (work, stage, _, is_final), group in groupby(RunFolder(path.parent).rounds(), key=_key):
        lines = list(group)
        if work == "evaluate":
            found.append(_Evaluation(stage, is_final, rounds, sent, lines))
        else:
            rounds += sum(line["work"] == "update" for line in lines)
            sent += sum(sum(line["bytes"].values()) for line in lines)
    return found


def _key(line: RoundRow) -> tuple[str, str, int, bool]:
    """Return the key that all blocks of one evaluation have in common."""
    return line["work"], line["stage"], line["round"], line["final"]


def _combined(lines: Iterable[RoundRow], column: str) -> tuple[float | None, int]:
    """Return the mean over the blocks of an evaluation, and the number of their devices."""
    blocks = list(lines)
    known = combined_mean(mean for line in blocks if (mean := mean_in(line, column)) is not None)
    return known and known[0], sum(len(line["heard"]) for line in blocks)


def _final_means(
    run: RunFolder, column: str, sample: Collection[DeviceId]
) -> dict[str, tuple[float | None, int]]:
    """Return the mean over the sample at the end of each stage, and the number of its devices."""
    table, split = run.devices, run.summary["split"]
    columns = ["stage", "device", "split", "weight", column]
    rows = table.select(columns).to_pylist() if column in table.column_names else []
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["split"] == split and row["device"] in sample:
            stages.setdefault(row["stage"], []).append(row)
    found: dict[str, tuple[float | None, int]] = {}
    for stage, own in stages.items():
        measured = [(row[column], row["weight"]) for row in own if row[column] is not None and row["weight"]]
        known = combined_mean(measured)
        found[stage] = known and known[0], len(own)
    return found
