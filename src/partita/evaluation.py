"""Metrics by device: means, spread, and who was helped or hurt against the pretrained model."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from partita.protocol import DeviceId, Measures, Stage
from partita.tasks.metrics import Direction
from partita.tasks.task import COLUMNS, Task

Row = Mapping[str, Any]
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


def summarise(rows: Iterable[Row], task: Task, *, split: str = "test") -> Summary:
    """Return how each stage's model does over devices, on one split.

    Helped and hurt are strict, against the same device's `pretrained` metric. A device on which the
    metric is undefined is left out.
    """
    direction = task.metrics[task.headline].direction
    by_stage: dict[str, dict[DeviceId, tuple[float, float]]] = {}
    for row in rows:
        if row["split"] == split and row["metric"] is not None:
            by_stage.setdefault(row["stage"], {})[row["device"]] = (row["metric"], row["weight"])
    before = {device: value for device, (value, _) in by_stage.get(Stage.PRETRAINED, {}).items()}
    stages = {stage: _statistics(by_stage[stage], before, direction) for stage in Stage if stage in by_stage}
    return {"metric": task.headline, "direction": direction, "stages": stages}


def _statistics(
    measured: Mapping[DeviceId, tuple[float, float]],
    before: Mapping[DeviceId, float],
    direction: Direction,
) -> dict[str, float | int]:
    values = np.array([value for value, _ in measured.values()])
    sign = 1 if direction == "up" else -1
    gains = np.array(
        [sign * (value - before[device]) for device, (value, _) in measured.items() if device in before]
    )
    quantiles = dict(zip(("q10", "q50", "q90"), np.quantile(values, [0.1, 0.5, 0.9]), strict=True))
    spread = {
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        **quantiles,
        "max": values.max(),
    }
    return {
        "weighted_mean": weighted_mean(values, (weight for _, weight in measured.values())),
        **{name: float(value) for name, value in spread.items()},
        "devices": len(values),
        "helped": int((gains > 0).sum()),
        "hurt": int((gains < 0).sum()),
        "same": int((gains == 0).sum()),
    }
