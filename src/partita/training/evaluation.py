"""Metrics over devices: means, spread, and devices helped or hurt against the pretrained model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId, Measures, Stage
from partita.tasks.task import COLUMNS, Task
from partita.training.failures import TrainingFailures

DeviceRow = Mapping[str, Any]
"""Measurements of one device, stage and split: a row of `devices.parquet`."""
Mean = tuple[float, float]
"""A mean and its weight."""
Column = npt.NDArray[np.float64]
Summary = dict[str, Any]

MODEL_OF: Mapping[Stage, Literal["global", "personal"]] = {
    Stage.PRETRAINED: "global",
    Stage.PERSONALIZED: "personal",
    Stage.FINETUNED: "personal",
}
"""The model that each stage evaluates."""


def columns_of(task: Task) -> dict[str, type]:
    """Return the columns of `devices.parquet`, with their types."""
    kinds = {"seen": bool, "examples": int, "weight": int, "loss": float, "metric": float}
    *measured, reason = COLUMNS
    further = dict.fromkeys(further_metrics(task), float)
    return {name: kinds.get(name, str) for name in measured} | further | {reason: str}


def further_metrics(task: Task) -> list[str]:
    """Return the names of all metrics but the headline metric."""
    return [name for name in task.metrics if name != task.headline]


def rows_of(
    task: Task, stage: Stage, device: DeviceId, metrics: Mapping[str, Measures], *, seen: bool = True
) -> Iterator[DeviceRow]:
    """Yield a row for each split that a device measured, with the headline metric in the column `metric`."""
    for split, measures in metrics.items():
        values = dict(measures)
        values["metric"] = values.pop(task.headline)
        about = {"stage": stage, "model": MODEL_OF[stage], "device": device, "seen": seen, "split": split}
        yield {**about, **values}


_FAILED = "training failed: "
"""The beginning of the reason in the row of a device whose training failed."""


def without_metric(row: DeviceRow, task: Task, reason: str) -> DeviceRow:
    """Return the row of a device whose training failed: without a loss and metrics, and with the reason."""
    values = dict.fromkeys(("loss", "metric", *further_metrics(task)))
    return {**row, **values, "reason": f"{_FAILED}{reason}"}


def is_failed(row: DeviceRow) -> bool:
    """Return whether a row is of a device whose training failed in the row's stage."""
    return (row["reason"] or "").startswith(_FAILED)


def last_stage(names: Iterable[str]) -> Stage:
    """Return the last stage of training among the stages of some rows.

    >>> last_stage(["served", "finetuned", "pretrained"]).value
    'finetuned'
    """
    known = {Stage.PRETRAINED, *names}
    return [stage for stage in Stage if stage in known and stage is not Stage.SERVED][-1]


class Pretrained:
    """The pretrained model's metric on every device, which later models are compared with.

    Args:
        rows, task, devices, split: as in `summarize`.
    """

    def __init__(self, rows: Iterable[DeviceRow], task: Task, *, devices: int, split: str) -> None:
        before = (row for row in rows if row["stage"] == Stage.PRETRAINED)
        self._before = _measured(before, devices, split).column(Stage.PRETRAINED)
        self._sign = _sign(task)
        self._split = split

    def against(self, rows: Iterable[DeviceRow]) -> dict[str, int]:
        """Return how many devices a later model helps, hurts and leaves the same."""
        known = [row for row in rows if row["split"] == self._split and row["metric"] is not None]
        return _counts(
            np.array([row["metric"] - self._before[row["position"]] for row in known]) * self._sign
        )


def gains_on(rows: Iterable[DeviceRow], stage: Stage, task: Task, *, devices: int, split: str) -> Column:
    """Return the improvement of a stage's model over the pretrained one on a split, by position."""
    return _measured(rows, devices, split).gains(stage, task)


def weighted_mean(values: Iterable[float], weights: Iterable[float]) -> float:
    """Return the weighted mean of `values`."""
    return float(np.average(np.fromiter(values, float), weights=np.fromiter(weights, float)))


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


def summarize(
    rows: Iterable[DeviceRow],
    task: Task,
    *,
    devices: int,
    split: str = "test",
    failures: Mapping[str, TrainingFailures] | None = None,
    max_failed: float = 0.5,
) -> Summary:
    """Return statistics of each stage's model over devices, on one split.

    Helped and hurt are strict, against the same device's `pretrained` metric. A device without a metric is
    left out. A stage in which too many devices failed has no statistics, nor have the stages after it: they
    are in `failed`.

    Args:
        rows: measurements, each with the `position` of its device among all that were evaluated; those of
            one stage follow each other.
        task: names the headline metric and its direction.
        devices: number of evaluated devices.
        split: the split that counts.
        failures: the devices whose training failed in each stage.
        max_failed: the share of the devices that may fail.
    """
    measured = _measured(rows, devices, split, further_metrics(task))
    failed = _failed_stages(measured, failures or {}, max_failed)
    stages = {
        str(stage): {
            **_statistics(measured.values[stage], measured.weights),
            "failed": measured.failed[stage],
            **_counts(measured.gains(stage, task)),
            "metrics": measured.further[stage],
        }
        for stage in Stage
        if stage in measured.values and stage not in failed
    }
    directions = {name: metric.direction for name, metric in task.metrics.items()}
    about = {"metric": task.headline, "direction": directions[task.headline], "split": split}
    return {**about, "directions": directions, "stages": stages, "failed": failed}


@dataclass(frozen=True)
class _Measured:
    """The measurements on one split, by stage; a column has 8 bytes for each device."""

    weights: Column
    values: dict[Stage, Column] = field(default_factory=dict)
    """The metric by position, NaN where there is none; without stages in which no device has it."""
    further: dict[Stage, dict[str, dict[str, float | int]]] = field(default_factory=dict)
    """The statistics of each further metric that a device with a weight has, by stage and name."""
    failed: Counter[str] = field(default_factory=Counter)
    """The number of devices without a loss and a metric: training failed, or they are not finite."""
    known: Counter[str] = field(default_factory=Counter)
    """The number of devices that were evaluated."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The first device that failed, with its reason."""

    def column(self, stage: Stage) -> Column:
        """Return the metric by position, NaN where there is none."""
        found = self.values.get(stage)
        return np.full(len(self.weights), np.nan) if found is None else found

    def gains(self, stage: Stage, task: Task) -> Column:
        """Return the improvement of a stage's model over the pretrained one, by position."""
        return (self.column(stage) - self.column(Stage.PRETRAINED)) * _sign(task)

    def add(self, row: DeviceRow, columns: Mapping[str, Column]) -> None:
        """Add a row, in place, and its metrics to the columns of its stage."""
        stage, position = Stage(row["stage"]), row["position"]
        self.known[stage] += 1
        for name, column in columns.items():
            if row[name] is not None:
                column[position] = row[name]
                self.weights[position] = row["weight"]
        if row["metric"] is None and row["loss"] is None:
            self.failed[stage] += 1
            self.reasons.setdefault(stage, f"{row['device']}: {row['reason']}")


def _measured(rows: Iterable[DeviceRow], devices: int, split: str, further: Sequence[str] = ()) -> _Measured:
    """Return the measurements on a split, with the statistics of some further metrics."""
    found = _Measured(np.zeros(devices))
    own = (row for row in rows if row["split"] == split)
    for stage, group in groupby(own, key=lambda row: Stage(row["stage"])):
        columns = {name: np.full(devices, np.nan) for name in ("metric", *further)}
        for row in group:
            found.add(row, columns)
        if not np.isnan(values := columns.pop("metric")).all():
            found.values[stage] = values
        found.further[stage] = {
            name: _statistics(column, found.weights)
            for name, column in columns.items()
            if found.weights[~np.isnan(column)].any()
        }
    return found


def _failed_stages(
    measured: _Measured, failures: Mapping[str, TrainingFailures], max_failed: float
) -> dict[str, Any]:
    """Return the stages in which too many devices failed, or all: how many, of how many, and why.

    A stage that began from a failed one has failed too, whatever its own devices have made of it.
    """
    found: dict[str, Any] = {}
    for stage in (stage for stage in Stage if stage is not Stage.SERVED):
        trained = failures.get(stage, TrainingFailures())
        counts = [
            (len(trained.reasons), trained.asked, _first(trained.reasons)),
            (len(trained.unevaluated), trained.evaluated, _first(trained.unevaluated)),
            (measured.failed[stage], measured.known[stage], measured.reasons.get(stage, "")),
        ]
        most = [count for count in counts if count[0] > max_failed * count[1] or count[0] == count[1] > 0]
        if not most and found and measured.known[stage]:
            before = list(found)[-1]
            most = [(0, measured.known[stage], f"it began from the stage `{before}`, which failed")]
        if most:
            found[str(stage)] = dict(zip(("failed", "devices", "reason"), most[0], strict=True))
    last = last_stage(measured.known)
    if last in found and measured.known[Stage.SERVED]:
        found[str(Stage.SERVED)] = found[last]
    return found


def _first(reasons: Mapping[DeviceId, str]) -> str:
    return next((f"{device}: {reason}" for device, reason in reasons.items()), "")


def _sign(task: Task) -> int:
    return 1 if task.metrics[task.headline].direction == "up" else -1


def _counts(gains: Column) -> dict[str, int]:
    """Return how many gains are above, below and at zero; NaN is none of them."""
    signs = {"helped": gains > 0, "hurt": gains < 0, "same": gains == 0}
    return {name: int(found.sum()) for name, found in signs.items()}


def _statistics(column: Column, weights: Column) -> dict[str, float | int]:
    """Return statistics over the devices that have a value."""
    known = ~np.isnan(column)
    values = column[known]
    q10, q50, q90 = np.quantile(values, [0.1, 0.5, 0.9])
    numbers = {
        "weighted_mean": np.average(values, weights=weights[known]),
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        "q10": q10,
        "q50": q50,
        "q90": q90,
        "max": values.max(),
    }
    return {**{name: float(number) for name, number in numbers.items()}, "devices": len(values)}
