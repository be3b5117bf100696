"""The exact weighted mean of changes.

It is a sum of integers (`sums.py`), so its bits do not depend on the order or grouping of replies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from torch import Tensor

from partita.params import Params, change_of, cloned, mismatch, shapes_of
from partita.sums import LARGEST, ExactSum, groups_of, largest_of, room_for


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The integer sums of a weighted mean, which can be sent elsewhere and merged into another mean."""

    weight: int
    """The sum of the weights."""
    limbs: Mapping[str, Tensor]
    """For each floating-point tensor, a matrix of whole numbers with a row per limb, low limbs first: int64,
    or float64 while its one limb is exact in it."""
    bounds: Mapping[str, int]
    """For each of them, a bound of the sum's absolute values."""
    lowest: str | None
    """The lowest device id, of which the integer tensors are."""
    whole: Params
    """The changes of integer tensors."""


class WeightedMean:
    """The weighted mean of changes, exact in any order and grouping.

    Integer tensors have no mean: they are taken from the lowest device id.

    >>> import torch
    >>> mean = WeightedMean({"u": torch.zeros(1)})
    >>> mean.add("a", {"u": torch.tensor([1.0])}, weight=1)
    >>> mean.add("b", {"u": torch.tensor([5.0])}, weight=3)
    >>> mean.value()["u"].item()
    4.0
    """

    def __init__(self, like: Params) -> None:
        self.like = like
        self.weight = 0
        self._shapes = shapes_of(like)
        floats = {name: tensor for name, tensor in like.items() if tensor.is_floating_point()}
        groups = list(groups_of(floats))
        room = room_for(groups)
        self._sums = [ExactSum(group, room) for group in groups]
        self._integers = [name for name in like if name not in floats]
        self._lowest: str | None = None
        self._whole: Params = {}

    def add(self, device: str, change: Params, weight: int) -> None:
        """Add the change of `device`, in place; an error leaves the mean unchanged.

        Raises:
            ValueError: the change does not fit the shared part, is not finite or is too large for float32.
        """
        self._add(device, change, weight, is_change=True)
        self._keep_lowest(device, {name: change[name] for name in self._integers})

    def add_after(self, device: str, after: Params, weight: int) -> None:
        """Add the change of `device` from `like` to `after`, as `add` does, without a copy of it."""
        self._add(device, after, weight, is_change=False)
        self._keep_lowest(device, change_of({name: after[name] for name in self._integers}, self.like))

    def check(self, device: str, change: Params, weight: int) -> None:
        """Raise a `ValueError` if a change cannot be added, as `add` does."""
        self._check(device, change, weight)
        floats = [tensor for name, tensor in change.items() if name not in self._integers]
        if not all(largest_of(tensor) <= LARGEST for tensor in floats):
            self._refuse(device, change)

    def totals(self) -> Totals:
        """Return the sums so far; to add more may change them."""
        return Totals(
            weight=self.weight,
            limbs={name: limbs for total in self._sums for name, limbs in total.limbs().items()},
            bounds={name: total.bound for total in self._sums for name in total.names},
            lowest=self._lowest,
            whole=self._whole,
        )

    def merge(self, totals: Totals) -> None:
        """Add everything that another mean has added, in place; an error leaves the mean unchanged.

        Raises:
            ValueError: the sums do not fit the shared part.
        """
        self._check_totals(totals)
        for total in self._sums:
            total.merge(totals.limbs, max(totals.bounds[name] for name in total.names))
        self.weight += totals.weight
        if totals.lowest is not None:
            self._keep_lowest(totals.lowest, totals.whole)

    def value(self) -> dict[str, Tensor]:
        """Return the mean, in the dtypes of the shared part (integers as int64)."""
        if not self.weight:
            raise ValueError("The mean of no changes is undefined.")
        means = {name: mean for total in self._sums for name, mean in total.over(self.weight).items()}
        return {name: means[name] if name in means else self._whole[name] for name in self.like}

    def _add(self, device: str, tensors: Params, weight: int, *, is_change: bool) -> None:
        self._check(device, tensors, weight)
        for number, total in enumerate(self._sums):
            if not total.add(tensors, weight, is_change=is_change):
                for added in self._sums[:number]:
                    added.add(tensors, -weight, is_change=is_change)
                self._refuse(device, tensors if is_change else change_of(tensors, self.like))
        self.weight += weight

    def _keep_lowest(self, device: str, whole: Params) -> None:
        if self._lowest is None or device < self._lowest:
            self._lowest, self._whole = device, cloned(whole)

    def _check_totals(self, totals: Totals) -> None:
        own = {name: self.like[name].numel() for total in self._sums for name in total.names}
        given = {name: limbs.shape[-1] for name, limbs in totals.limbs.items()}
        if given != own or (totals.lowest is not None and totals.whole.keys() != self.like.keys() - own):
            raise ValueError("The sums must have the names and sizes of the shared part.")

    def _check(self, device: str, change: Params, weight: int) -> None:
        """Check that a change has a weight, and the names and shapes of the shared part."""
        if type(weight) is not int or weight < 1:
            raise ValueError(
                f"The weight of device {device!r} must be a whole number, at least 1, got {weight!r}."
            )
        if shapes_of(change) == self._shapes:
            return
        if change.keys() != self.like.keys():
            raise ValueError(
                f"The change of device {device!r} must have the names of the shared part: "
                f"{mismatch(self.like, change)}."
            )
        name = next(name for name, tensor in change.items() if tensor.shape != self._shapes[name])
        raise ValueError(
            f"The change of `{name}` on device {device!r} must have the shape "
            f"{tuple(self._shapes[name])}, got {tuple(change[name].shape)}."
        )

    def _refuse(self, device: str, change: Params) -> NoReturn:
        """Raise for the first tensor that is not finite or too large."""
        largest = {name: largest_of(change[name]) for name in self.like if name not in self._integers}
        name = next(name for name, value in largest.items() if not value <= LARGEST)
        raise ValueError(
            f"The change of `{name}` on device {device!r} must be finite and at most "
            f"{LARGEST:.3g}, the largest float32, got {largest[name]:.3g}."
        )
