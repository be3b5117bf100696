"""The curve of a run: a metric over a fixed sample of devices, by training rounds and by bytes."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from partita.protocol import DeviceId
from partita.runs.folder import RunFolder
from partita.training.evaluation import weighted_mean
from partita.training.journal import RoundRow

Mean = tuple[float, float]
"""A mean and its weight."""


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
    column = "metric" if metric in (None, run.summary["metric"]) else metric
    final = _final_means(run, column, sample_of(run) if sample is None else sample)
    points: list[CurvePoint] = []
    rounds = sent = 0
    for (work, stage, _, is_final), group in groupby(run.rounds(), key=_evaluation):
        lines = list(group)
        if work != "evaluate":
            rounds += sum(line["work"] == "update" for line in lines)
            sent += sum(sum(line["bytes"].values()) for line in lines)
            continue
        mean, devices = final.get(stage, (None, 0)) if is_final else _combined(lines, column)
        if mean is not None and stage not in run.summary.get("failed", {}):
            points.append(CurvePoint(stage=stage, round=rounds, sent=sent, mean=mean, devices=devices))
    return points


def sample_of(run: RunFolder) -> frozenset[DeviceId]:
    """Return the devices that a run evaluates during training; all evaluated devices where it does not."""
    evaluations = [line for line in run.rounds() if line["work"] == "evaluate"]
    during = [line for line in evaluations if not line["final"]]
    return frozenset(device for line in during or evaluations for device in line["asked"])


def has_curve(run: RunFolder) -> bool:
    """Return whether a run was evaluated during training."""
    return any(line["work"] == "evaluate" and not line["final"] for line in run.rounds())


def metrics_of(run: RunFolder) -> list[str]:
    """Return the names of the metrics that a run's evaluations have, the headline metric first."""
    further = {name: None for line in run.rounds() for name in line.get("metrics", {})}
    return [run.summary["metric"], *further]


def combined_mean(means: Iterable[Mean]) -> Mean | None:
    """Return the weighted mean of means with their total weight, None if there are none.

    >>> combined_mean([(0.5, 1), (1.0, 3)])
    (0.875, 4)
    """
    known = list(means)
    if not known:
        return None
    values, weights = zip(*known, strict=True)
    return weighted_mean(values, weights), sum(weights)


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


def _evaluation(line: RoundRow) -> tuple[str, str, int, bool]:
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
