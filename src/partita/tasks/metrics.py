"""Metrics over all predictions of a device, each with a direction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

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
