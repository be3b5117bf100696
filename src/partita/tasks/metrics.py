"""Metrics over all predictions of a device, each with a direction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from partita.errors import did_you_mean

Direction = Literal["up", "down"]
MetricFn = Callable[[Any, Any], float | Tensor | None]
"""Computes a metric from all predictions and targets of a device; None, NaN or `Undefined`: no value."""


class Undefined(Exception):
    """Raised by a metric that has no value on a device; the message gives the reason."""


@dataclass(frozen=True)
class Metric:
    """A function of all predictions and targets of a device, and the direction in which it is better."""

    compute: MetricFn
    direction: Direction = "up"
    """Whether a higher value (`up`) or a lower one (`down`) is better."""

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down"):
            raise ValueError(f"`direction` must be 'up' or 'down', got {self.direction!r}.")


def accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose largest score is that of the target class.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    0.5
    """
    return (predictions.argmax(dim=1) == targets).double().mean().item()


@dataclass(frozen=True)
class NamedMetric:
    """A metric that a config can name."""

    title: str
    """Its name in tables and in `devices.parquet`."""
    metric: Metric


def select(names: Sequence[str], known: Mapping[str, NamedMetric], *, of: str) -> dict[str, Metric]:
    """Return the metrics that `task.metrics` names, by title; the first is the headline metric.

    Args:
        names: their names.
        known: the metrics that fit the task, by name.
        of: the kind of task, for messages.

    Raises:
        ValueError: it is not a list of different names of metrics that fit the task.
    """
    every = ", ".join(known)
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        first = next(iter(known))
        raise ValueError(
            f'`metrics` must be a list of names among {every}, such as `["{first}"]`, got {names!r}.'
        )
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name).lower(), known)
            raise ValueError(f"`metrics`: {of} has no metric {name!r}.{hint} Its metrics: {every}.")
        if names.count(name) > 1:
            raise ValueError(f"`metrics` must name each metric once, got {name!r} {names.count(name)} times.")
    return {known[name].title: known[name].metric for name in names}


def check_finite(predictions: Tensor) -> None:
    """Raise `Undefined` if a prediction is not finite: a metric of such predictions means nothing."""
    if not predictions.isfinite().all():
        raise Undefined("predictions are not finite")
