"""How the server combines the changes of a cohort: the weighted mean, or rules robust to a few bad devices.

Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
    D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. ICML 2018.
    https://arxiv.org/abs/1803.01498

Its trimmed mean and its median are taken coordinate by coordinate. They need all changes of a cohort at once,
and each by itself, not the sums that an executor makes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from partita.mean import Totals, WeightedMean
from partita.params import Params, cloned

Rule = Literal["mean", "trimmed_mean", "median"]

_CHUNK = 65_536
"""Coordinates that are sorted at a time."""
_SUMMED = 16_384
"""Elements whose squares are added up at a time: few enough for torch to use one thread and one order."""


class Aggregator(Protocol):
    """Combines the changes of a cohort; its value does not depend on the order in which they are added."""

    @property
    def like(self) -> Params:
        """The shared part, whose names, shapes and types the changes must have."""
        ...

    def add(self, device: str, change: Params, weight: int) -> None:
        """Add the change of a device, in place; an error, a `ValueError`, leaves everything unchanged."""
        ...

    def merge(self, totals: Totals) -> None:
        """Add sums that an executor has made, in place."""
        ...

    def value(self) -> dict[str, Tensor]:
        """Return the combined change, once all have been added."""
        ...


@dataclass(frozen=True, kw_only=True)
class Aggregating:
    """How the server combines the changes of a round's devices."""

    aggregation: Rule = "mean"
    """How the server combines the changes of the shared part: mean (weighted, see `weights`), or, where some
    devices cannot be trusted, trimmed_mean (see `trim`) or median. These two take each coordinate by itself
    and all devices with the same weight, and the server holds all changes of a round in memory."""
    trim: float = 0.2
    """With trimmed_mean, the share of the devices whose values are left out at each end, rounded up."""
    max_change_norm: float = 0.0
    """Maximum norm of a device's change, over all floating-point tensors that it sends: the server scales a
    larger one down to it; 0: no limit."""

    def __post_init__(self) -> None:
        if self.aggregation not in get_args(Rule):
            raise ValueError(
                f"`aggregation` must be 'mean', 'trimmed_mean' or 'median', got {self.aggregation!r}."
            )
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"`trim` must be at least 0 and below 0.5, got {self.trim!r}.")
        if not 0 <= self.max_change_norm < math.inf:
            raise ValueError(
                "`max_change_norm` must be a finite number, 0 (no limit) or above, got "
                f"{self.max_change_norm!r}."
            )

    @property
    def holds_changes(self) -> bool:
        """Whether the server holds all changes of a round at once."""
        return self.aggregation != "mean"

    @property
    def needs_single(self) -> bool:
        """Whether the server needs each device's change by itself."""
        return self.holds_changes or self.max_change_norm > 0

    def begin(self, shared: Params) -> Aggregator:
        """Return the aggregator of one round."""
        inner = TrimmedMean(shared, self._trimmed) if self.holds_changes else WeightedMean(shared)
        return Clipped(inner, self.max_change_norm) if self.max_change_norm else inner

    def _trimmed(self, devices: int) -> int:
        """Return how many values are left out at each end; the median, one value or two, always stays."""
        middle = (devices - 1) // 2
        # 0.07 x 100 is 7.000000000000001 in floating point.
        return middle if self.aggregation == "median" else min(math.ceil(self.trim * devices - 1e-9), middle)


class TrimmedMean:
    """The mean of each coordinate without its smallest and largest values, the median if only these stay.

    All changes are held until the end. Every device counts the same: a weight is a device's own claim. Of
    integer tensors, which have no mean, it takes the median, the lower one of two.

    >>> mean = TrimmedMean({"u": torch.zeros(1)}, lambda devices: 1)
    >>> for device, change in (("a", 1.0), ("b", -900.0), ("c", 3.0), ("d", 900.0)):
    ...     mean.add(device, {"u": torch.tensor([change])}, weight=1)
    >>> mean.value()["u"].item()
    2.0

    Args:
        like: the shared part.
        trimmed: returns how many values are left out at each end, for a number of devices.
    """

    def __init__(self, like: Params, trimmed: Callable[[int], int]) -> None:
        self._mean = WeightedMean(like)
        self._trimmed = trimmed
        self._changes: list[dict[str, Tensor]] = []

    @property
    def like(self) -> Params:
        """The shared part."""
        return self._mean.like

    def add(self, device: str, change: Params, weight: int) -> None:
        """Keep a copy of the change of `device`, in place."""
        self._mean.check(device, change, weight)
        # In the order of their coordinates in memory, as they are sorted by it.
        self._changes.append({name: tensor.contiguous() for name, tensor in cloned(change).items()})

    def merge(self, totals: Totals) -> None:
        """Refuse sums: their changes cannot be taken apart."""
        raise ValueError("The executor has added up changes, and a trimmed mean needs each one by itself.")

    def value(self) -> dict[str, Tensor]:
        """Return the trimmed mean; the copies are sorted in place."""
        for name in self.like:
            _sort([change[name] for change in self._changes])
        count = len(self._changes)
        trimmed, integers = self._trimmed(count), self._integers(count)
        for change in self._changes[trimmed : count - trimmed]:
            self._mean.add("", {**change, **integers}, 1)
        return self._mean.value()

    def _integers(self, count: int) -> Params:
        """Return the median of each integer tensor, from sorted changes."""
        middle = self._changes[(count - 1) // 2] if count else {}
        return {name: tensor for name, tensor in middle.items() if not tensor.is_floating_point()}


class Clipped:
    """Another aggregator, whose changes are first scaled down to a norm.

    Args:
        inner: combines the changes.
        max_norm: the largest norm of a change.
    """

    def __init__(self, inner: Aggregator, max_norm: float) -> None:
        self._inner = inner
        self._max_norm = max_norm

    @property
    def like(self) -> Params:
        """The shared part."""
        return self._inner.like

    def add(self, device: str, change: Params, weight: int) -> None:
        """Add the change of `device`, scaled down where its norm is too large, in place."""
        self._inner.add(device, clipped(change, self._max_norm), weight)

    def merge(self, totals: Totals) -> None:
        """Refuse sums: the norms of their changes are not known."""
        raise ValueError("The executor has added up changes, and clipping needs each one by itself.")

    def value(self) -> dict[str, Tensor]:
        """Return the combined change."""
        return self._inner.value()


def clipped(change: Params, max_norm: float) -> Params:
    """Return a change, scaled down if the norm over all of its floating-point tensors is above a maximum.

    >>> clipped({"u": torch.tensor([3.0]), "w": torch.tensor([4.0])}, 1.0)
    {'u': tensor([0.6000]), 'w': tensor([0.8000])}
    """
    floats = {name: tensor for name, tensor in change.items() if tensor.is_floating_point()}
    norm = math.sqrt(math.fsum(_squares(floats)))
    if not max_norm < norm < math.inf:  # One that is not finite is refused as it is.
        return change
    return {**change, **{name: tensor * (max_norm / norm) for name, tensor in floats.items()}}


def _squares(tensors: Params) -> Sequence[float]:
    """Return sums of squares of some elements each, the same for any number of threads."""
    parts = [part for tensor in tensors.values() for part in tensor.detach().reshape(-1).split(_SUMMED)]
    return [part.double().square().sum().item() for part in parts]


def _sort(tensors: Sequence[Tensor]) -> None:
    """Sort the values of each coordinate over tensors of the same shape, in place, the smallest first."""
    flat = [tensor.view(-1) for tensor in tensors]
    for begin in range(0, len(flat[0]) if flat else 0, _CHUNK):
        parts = [values[begin : begin + _CHUNK] for values in flat]
        ordered = torch.stack(parts, dim=1).sort(dim=1).values
        for number, part in enumerate(parts):
            part.copy_(ordered[:, number])
