"""The curve of a run: a metric over a fixed sample of devices, by training rounds and by bytes."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from partita.data.arrow import rows_where, tuples_of
from partita.protocol import DeviceId
from partita.runs.folder import RunFolder
from partita.training.evaluation import Mean, combined_mean
from partita.training.journal import RoundRow

Measured = tuple[float, int]
"""A mean, and the number of devices in it."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """One evaluation of a run's model."""

    stage: str
    round: int
    """Training rounds of the run so far, over all stages; fine-tuning has none."""
    sent: int
    """Bytes of the run's training so far, up and down, with fine-tuning."""
    mean: float
    """Weighted mean of the metric over the devices of the sample that have it."""
    devices: int
    """Number of these devices."""


def curve_of(
    run: RunFolder, metric: str | None = None, *, sample: Collection[DeviceId] | None = None
) -> list[CurvePoint]:
    """Return the evaluations of a finished run in order, all over the same devices.

    The evaluation at the end of a stage covers all evaluated devices: its point has those of the sample only.
    It replaces an evaluation after the last round, where early stopping has gone back to an earlier one.
    A stage that failed has no points, and neither has an evaluation that lacks the metric of any device that
    another one has: training failed there, and a mean without it could look better for that reason.

    Args:
        run: the run.
        metric: name of the metric; None is the headline metric.
        sample: the devices; None is `sample_of(run)`. A run that does not evaluate during training, in a
            comparison for example, can be given the sample of another run.
    """
    points = list(_points(run, metric, sample_of(run) if sample is None else sample))
    most = max((point.devices for point in points), default=0)
    whole = {(point.stage, point.round): point for point in points if point.devices == most}
    return list(whole.values())


def _points(run: RunFolder, metric: str | None, sample: Collection[DeviceId]) -> Iterator[CurvePoint]:
    """Yield the evaluations that have a mean."""
    summary = run.summary
    column = "metric" if metric in (None, summary["metric"]) else metric
    final = _final_means(run, column, sample)
    for each in _evaluations(run):
        found = final.get(each.stage) if each.is_final else each.means.get(column)
        if found is not None and each.stage not in summary.get("failed", {}):
            mean, devices = found
            yield CurvePoint(stage=each.stage, round=each.round, sent=each.sent, mean=mean, devices=devices)


def sample_of(run: RunFolder) -> frozenset[DeviceId]:
    """Return the devices that a run evaluates during training; all evaluated devices where it does not."""
    asked: dict[bool, set[DeviceId]] = {True: set(), False: set()}
    for line in run.rounds():
        if line["work"] == "evaluate":
            asked[line["final"]].update(line["asked"])
    return frozenset(asked[False] or asked[True])


def has_curve(run: RunFolder) -> bool:
    """Return whether a run was evaluated during training."""
    return not all(each.is_final for each in _evaluations(run))


def metrics_of(run: RunFolder) -> list[str]:
    """Return the names of the metrics that a run's evaluations have, the headline metric first."""
    found = dict.fromkeys(name for each in _evaluations(run) for name in each.means)
    return [run.summary["metric"], *(name for name in found if name != "metric")]


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
    """One evaluation of all devices, and the training before it."""

    stage: str
    is_final: bool
    round: int
    sent: int
    means: Mapping[str, Measured]
    """The means that it has, by column: `metric`, and further metrics by name."""


def _evaluations(run: RunFolder) -> Sequence[_Evaluation]:
    """Return all evaluations of a run; a file that is unchanged is read once."""
    stat = run.rounds_file.stat()
    return _read(run.rounds_file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _read(path: Path, changed: int, size: int) -> Sequence[_Evaluation]:
    found: list[_Evaluation] = []
    rounds = sent = 0
    for (work, stage, _, is_final), group in groupby(RunFolder(path.parent).rounds(), key=_key):
        lines = list(group)
        if work == "evaluate":
            found.append(_Evaluation(stage, is_final, rounds, sent, dict(_combined(lines))))
        else:
            rounds += sum(line["work"] == "update" for line in lines)
            sent += sum(sum(line["bytes"].values()) for line in lines)
    return found


def _key(line: RoundRow) -> tuple[str, str, int, bool]:
    """Return the key that all blocks of one evaluation have in common."""
    return line["work"], line["stage"], line["round"], line["final"]


def _combined(blocks: Sequence[RoundRow]) -> Iterator[tuple[str, Measured]]:
    """Yield the mean of each metric over the blocks of an evaluation, and the number of devices in it."""
    for column in dict.fromkeys(["metric", *(name for line in blocks for name in line.get("metrics", {}))]):
        own = [line for line in blocks if mean_in(line, column) is not None]
        if known := combined_mean(mean for line in own if (mean := mean_in(line, column))):
            yield column, (known[0], sum(_count_in(line, column) for line in own))


def _count_in(line: RoundRow, column: str) -> int:
    """Return the number of devices in the mean of a metric; all that replied where older runs do not say."""
    about = line if column == "metric" else line["metrics"][column]
    return about.get("devices", len(line["heard"]))


def _final_means(run: RunFolder, column: str, sample: Collection[DeviceId]) -> dict[str, Measured]:
    """Return the mean over the sample at the end of each stage, and the number of devices in it."""
    if column not in run.devices.column_names:
        return {}
    own = rows_where(run.devices, "split", value=run.summary["split"])
    stages: dict[str, list[Mean]] = {}
    for stage, device, weight, value in tuples_of(own, "stage", "device", "weight", column):
        if device in sample and value is not None and weight:
            stages.setdefault(stage, []).append((value, weight))
    found = {stage: combined_mean(means) for stage, means in stages.items()}
    return {stage: (mean[0], len(stages[stage])) for stage, mean in found.items() if mean}
