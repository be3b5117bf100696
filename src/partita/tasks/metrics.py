"""Numbers computed on a device's whole predictions, each with a direction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Direction = Literal["up", "down"]
MetricFn = Callable[[Any, Any], float | Tensor | None]
"""From all predictions and targets of a device to a value; None, NaN or `Undefined` where it has none."""


class Undefined(Exception):
    """Raised by a metric that has no value on a device; the message says why."""


@dataclass(frozen=True)
class Metric:
    """A number computed from all of a device's predictions and targets at once."""

    compute: MetricFn
    direction: Direction = "up"
    """Whether a higher value (`up`) or a lower one (`down`) is better."""

    def __post_init__(self) -> None:
        if self.direction not in ("up", "down"):
            raise ValueError(f"`direction` must be 'up' or 'down', got {self.direction!r}.")


def accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Return the share of rows whose largest score is at the target.

    >>> import torch
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    0.5
    """
    return (predictions.argmax(dim=1) == targets).double().mean().item()
