"""Metrics over devices: means, spread, and devices helped or hurt against the pretrained model."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId, Measures, Stage
from partita.tasks.task import COLUMNS, Task

DeviceRow = Mapping[str, Any]
"""Measurements of one device, stage and split: a row of `devices.parquet`."""
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
    kinds = {"examples": int, "weight": int, "loss": float, "metric": float}
    *measured, reason = COLUMNS
    further = [name for name in task.metrics if name != task.headline]
    return {name: kinds.get(name, str) for name in measured} | dict.fromkeys(further, float) | {reason: str}


def rows_of(
    task: Task, stage: Stage, device: DeviceId, metrics: Mapping[str, Measures]
) -> Iterator[DeviceRow]:
    """Yield a row for each split that a device measured, with the headline metric in the column `metric`."""
    for split, measures in metrics.items():
        values = dict(measures)
        values["metric"] = values.pop(task.headline)
        yield {"stage": stage, "model": MODEL_OF[stage], "device": device, "split": split, **values}


def served(rows: Callable[[], Iterable[DeviceRow]], task: Task, *, devices: int) -> Iterator[DeviceRow]:
    """Yield the rows of the model that each device is served: its own where better on validation data.

    On a tie, and where a device has no validation metric, the pretrained model is served.

    Args:
        rows: returns the measurements as in `summarize`; called more than once.
        task: names the headline metric and its direction.
        devices: number of evaluated devices.
    """
    values, _ = _columns(rows(), devices, "validation")
    last = [stage for stage, column in values.items() if not np.isnan(column).all()][-1:]
    gains = _gains(values, task)[last[0]] if last else np.zeros(devices)

    def of(stage: Stage, *, own: bool) -> Iterator[DeviceRow]:
        return (r for r in rows() if r["stage"] == stage and (gains[r["position"]] > 0) == own)

    chosen = [of(Stage.PRETRAINED, own=False), *(of(stage, own=True) for stage in last)]
    for row in heapq.merge(*chosen, key=lambda row: row["position"]):
        yield {**row, "stage": Stage.SERVED}


class Pretrained:
    """The pretrained model's metric on every device, which later models are compared with.

    Args:
        rows, task, devices, split: as in `summarize`.
    """

    def __init__(self, rows: Iterable[DeviceRow], task: Task, *, devices: int, split: str) -> None:
        self._before = _columns(rows, devices, split)[0][Stage.PRETRAINED]
        self._sign = _sign(task)
        self._split = split

    def against(self, rows: Iterable[DeviceRow]) -> dict[str, int]:
        """Return how many devices a later model helps, hurts and leaves the same."""
        known = [row for row in rows if row["split"] == self._split and row["metric"] is not None]
        return _counts(
            np.array([row["metric"] - self._before[row["position"]] for row in known]) * self._sign
        )


def weighted_mean(values: Iterable[float], weights: Iterable[float]) -> float:
    """Return the weighted mean of `values`."""
    return float(np.average(np.fromiter(values, float), weights=np.fromiter(weights, float)))


def summarize(rows: Iterable[DeviceRow], task: Task, *, devices: int, split: str = "test") -> Summary:
    """Return statistics of each stage's model over devices, on one split.

    Helped and hurt are strict, against the same device's `pretrained` metric. A device on which the
    metric is undefined is left out.

    Args:
        rows: measurements, each with the `position` of its device among all that were evaluated.
        task: names the headline metric and its direction.
        devices: number of evaluated devices.
        split: the split that counts.
    """
    values, weights = _columns(rows, devices, split)
    direction = task.metrics[task.headline].direction
    gains = _gains(values, task)
    stages = {
        str(stage): _statistics(column, weights, gains[stage])
        for stage, column in values.items()
        if not np.isnan(column).all()
    }
    return {"metric": task.headline, "direction": direction, "split": split, "stages": stages}


def _columns(rows: Iterable[DeviceRow], devices: int, split: str) -> tuple[dict[Stage, Column], Column]:
    """Return each stage's metrics by position, NaN where there is none, and the weights."""
    values = {stage: np.full(devices, np.nan) for stage in Stage}
    weights = np.zeros(devices)
    for row in rows:
        if row["split"] == split and row["metric"] is not None:
            values[Stage(row["stage"])][row["position"]] = row["metric"]
            weights[row["position"]] = row["weight"]
    return values, weights


def _gains(values: Mapping[Stage, Column], task: Task) -> dict[Stage, Column]:
    """Return the improvement of each stage's model over the pretrained one."""
    return {stage: (column - values[Stage.PRETRAINED]) * _sign(task) for stage, column in values.items()}


def _sign(task: Task) -> int:
    return 1 if task.metrics[task.headline].direction == "up" else -1


def _counts(gains: Column) -> dict[str, int]:
    """Return how many gains are above, below and at zero; NaN is none of them."""
    signs = {"helped": gains > 0, "hurt": gains < 0, "same": gains == 0}
    return {name: int(found.sum()) for name, found in signs.items()}


def _statistics(column: Column, weights: Column, gains: Column) -> dict[str, float | int]:
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
    return {
        **{name: float(number) for name, number in numbers.items()},
        "devices": len(values),
        **_counts(gains),
    }
