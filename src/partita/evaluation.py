"""Metrics by device: means, spread, and who was helped or hurt against the pretrained model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId, Measures, Stage
from partita.tasks.task import COLUMNS, Task

Row = Mapping[str, Any]
Column = npt.NDArray[np.float64]
Summary = dict[str, Any]

MODEL_OF: Mapping[Stage, Literal["global", "personal"]] = {
    Stage.PRETRAINED: "global",
    Stage.PERSONALISED: "personal",
    Stage.FINETUNED: "personal",
}
"""Which model a stage's evaluation tests."""


def columns_of(task: Task) -> dict[str, type]:
    """Return the columns of a task's table of devices, with their types."""
    kinds = {"examples": int, "weight": int, "loss": float, "metric": float}
    *measured, reason = COLUMNS
    further = [name for name in task.metrics if name != task.headline]
    return {name: kinds.get(name, str) for name in measured} | dict.fromkeys(further, float) | {reason: str}


def rows_of(task: Task, stage: Stage, device: DeviceId, metrics: Mapping[str, Measures]) -> Iterator[Row]:
    """Yield a row for each split that a device measured: the headline metric in the column `metric`."""
    for split, measures in metrics.items():
        values = dict(measures)
        values["metric"] = values.pop(task.headline)
        yield {"stage": stage, "model": MODEL_OF[stage], "device": device, "split": split, **values}


def weighted_mean(values: Iterable[float], weights: Iterable[float]) -> float:
    """Return the mean of `values` by `weights`."""
    return float(np.average(np.fromiter(values, float), weights=np.fromiter(weights, float)))


def summarise(rows: Iterable[Row], task: Task, *, devices: int, split: str = "test") -> Summary:
    """Return how each stage's model does over devices, on one split.

    Helped and hurt are strict, against the same device's `pretrained` metric. A device on which the
    metric is undefined is left out.

    Args:
        rows: measurements, each with the `position` of its device among all that were evaluated.
        task: names the headline metric and its direction.
        devices: how many were evaluated.
        split: which rows count.
    """
    values = {stage: np.full(devices, np.nan) for stage in Stage}
    weights = np.zeros(devices)
    for row in rows:
        if row["split"] == split and row["metric"] is not None:
            values[Stage(row["stage"])][row["position"]] = row["metric"]
            weights[row["position"]] = row["weight"]
    direction = task.metrics[task.headline].direction
    gains = {
        stage: (column - values[Stage.PRETRAINED]) * (1 if direction == "up" else -1)
        for stage, column in values.items()
    }
    stages = {
        str(stage): _statistics(column, weights, gains[stage])
        for stage, column in values.items()
        if not np.isnan(column).all()
    }
    return {"metric": task.headline, "direction": direction, "stages": stages}


def _statistics(column: Column, weights: Column, gains: Column) -> dict[str, float | int]:
    """Return the statistics of the devices whose value is known; comparisons with NaN are false."""
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
        "helped": int((gains > 0).sum()),
        "hurt": int((gains < 0).sum()),
        "same": int((gains == 0).sum()),
    }
