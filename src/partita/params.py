"""Named tensors: copying, differences, digests, and the exact weighted mean.

The mean is a sum of integers, so its bits do not depend on the order or grouping of replies: each change is
rounded once to a multiple of 2^-36, multiplied by the device's integer weight and added up in int64.
"""

import hashlib
from collections.abc import Callable, Mapping

import safetensors.torch
import torch
from torch import Tensor, nn

Params = Mapping[str, Tensor]
"""Tensors by name."""

Aggregation = Callable[[int, int], float]
"""Returns the factor by which the server scales the mean change of a tensor that a method sends, from the
number of devices that replied and the number of all devices."""

SCALE = 2.0**36
"""A change is counted in steps of 1 / SCALE (about 1.5e-11)."""
_CHUNK = 65_536
"""Elements rounded at a time: as many as fit in a core's cache."""
_LIMIT = 2.0**62
"""Largest absolute sum over a cohort, so that int64 cannot overflow."""


def cloned(params: Params) -> dict[str, Tensor]:
    """Return detached copies of the tensors."""
    return {name: tensor.detach().clone() for name, tensor in params.items()}


def shapes_of(params: Params) -> dict[str, torch.Size]:
    """Return the shape of each tensor."""
    return {name: tensor.shape for name, tensor in params.items()}


def copy_into(target: Params, source: Params) -> None:
    """Copy the values of `source` into the tensors of `target`, in place and never aliased."""
    if target.keys() != source.keys():
        raise ValueError(f"The names differ: {_mismatch(target, source)}.")
    with torch.no_grad():
        for name, tensor in target.items():
            if tensor.shape != source[name].shape:
                raise ValueError(
                    f"`{name}` has the shape {tuple(tensor.shape)}, got {tuple(source[name].shape)}."
                )
            tensor.copy_(source[name])


def change_of(after: Params, before: Params) -> dict[str, Tensor]:
    """Return `after` - `before`; for integers and booleans, as int64."""
    return {
        name: tensor.detach() - before[name]
        if tensor.is_floating_point()
        else tensor.long() - before[name].long()
        for name, tensor in after.items()
    }


def pull(params: Params, toward: Params | None, *, strength: float) -> Tensor:
    """Return (strength / 2) ||params - toward||^2; without `toward`, toward 0.

    >>> pull({"u": torch.tensor([3.0])}, {"u": torch.tensor([1.0])}, strength=0.5).item()
    1.0
    """
    # `mse_loss` keeps the two tensors for the backward pass, not their difference: a third copy of the model.
    squares = [
        nn.functional.mse_loss(
            own, torch.zeros_like(own) if toward is None else toward[name], reduction="sum"
        )
        for name, own in params.items()
    ]
    return 0.5 * strength * sum(squares[1:], squares[0])


def largest_of(tensor: Tensor) -> float:
    """Return the largest absolute value; NaN where there is one."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.detach().aminmax()
    return max(-low.item(), high.item())


def size_in_bytes(params: Params) -> int:
    """Return the size of the tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in params.values())


def change_in_bytes(params: Params) -> int:
    """Return the size of a change of the tensors in bytes: integers and booleans change by int64."""
    return sum(
        tensor.numel() * (tensor.element_size() if tensor.is_floating_point() else 8)
        for tensor in params.values()
    )


def digest_of(params: Params) -> str:
    """Return a digest of names, shapes, types and values.

    >>> digest_of({"u": torch.zeros(2)}) == digest_of({"u": torch.zeros(2)})
    True
    """
    return hashlib.sha256(to_bytes(params)).hexdigest()


def to_bytes(params: Params, **about: str) -> bytes:
    """Return the tensors in the safetensors format, with at most one metadata entry `about` them.

    Only one, because the format does not fix the order of several, and equal tensors must give equal bytes.
    """
    if len(about) > 1:
        raise ValueError(f"At most one metadata entry is allowed, got {sorted(about)!r}.")
    tensors = {name: tensor.detach().contiguous() for name, tensor in params.items()}
    return safetensors.torch.save(tensors, metadata=about or None)


def from_bytes(content: bytes) -> dict[str, Tensor]:
    """Return the tensors that `to_bytes` wrote."""
    return safetensors.torch.load(content)


class WeightedMean:
    """The weighted mean of changes, exact in any order and grouping.

    Integer tensors have no mean: they are taken from the lowest device id.

    >>> mean = WeightedMean({"u": torch.zeros(1)}, cohort=2)
    >>> mean.add("a", {"u": torch.tensor([1.0])}, weight=1)
    >>> mean.add("b", {"u": torch.tensor([5.0])}, weight=3)
    >>> mean.value()["u"].item()
    4.0
    """

    def __init__(self, like: Params, *, cohort: int) -> None:
        self.like = like
        self.cohort = cohort
        self.weight = 0
        self._totals = {
            name: torch.zeros(tensor.numel(), dtype=torch.int64)
            for name, tensor in like.items()
            if tensor.is_floating_point()
        }
        self._lowest: str | None = None
        self._whole: Params = {}

    def add(self, device: str, change: Params, weight: int) -> None:
        """Add the change of `device`, in place; an error leaves the mean unchanged.

        Raises:
            ValueError: the change does not fit the shared part, is not finite or is too large.
        """
        self._check(device, change, weight)
        for name, total in self._totals.items():
            values = change[name].detach().reshape(-1)
            for sums, chunk in zip(total.split(_CHUNK), values.split(_CHUNK), strict=True):
                sums.add_(chunk.double().mul_(SCALE).round_().long(), alpha=weight)
        self.weight += weight
        self._keep_lowest(device, {n: t for n, t in change.items() if n not in self._totals})

    def merge(self, other: "WeightedMean") -> None:
        """Add everything that `other` has added, in place."""
        for name, total in self._totals.items():
            total.add_(other._totals[name])  # noqa: SLF001
        self.weight += other.weight
        if other._lowest is not None:  # noqa: SLF001
            self._keep_lowest(other._lowest, other._whole)  # noqa: SLF001

    def value(self) -> dict[str, Tensor]:
        """Return the mean, in the dtypes of the shared part (integers as int64)."""
        if not self.weight:
            raise ValueError("The mean of no changes is undefined.")
        return {
            name: self._mean_of(name) if name in self._totals else self._whole[name] for name in self.like
        }

    def _mean_of(self, name: str) -> Tensor:
        mean = self._totals[name].double().div_(self.weight * SCALE).float()
        return mean.to(self.like[name].dtype).view(self.like[name].shape)

    def _keep_lowest(self, device: str, whole: Params) -> None:
        if self._lowest is None or device < self._lowest:
            self._lowest, self._whole = device, cloned(whole)

    def _check(self, device: str, change: Params, weight: int) -> None:
        if weight < 1:
            raise ValueError(f"The weight of device {device!r} must be at least 1, got {weight}.")
        if change.keys() != self.like.keys():
            raise ValueError(
                f"The change of device {device!r} must have the names of the shared part: "
                f"{_mismatch(self.like, change)}."
            )
        limit = _LIMIT / self.cohort / weight
        for name, tensor in change.items():
            if tensor.shape != self.like[name].shape:
                raise ValueError(
                    f"The change of `{name}` on device {device!r} must have the shape "
                    f"{tuple(self.like[name].shape)}, got {tuple(tensor.shape)}."
                )
            if name in self._totals and not largest_of(tensor) * SCALE <= limit:
                raise ValueError(
                    f"The change of `{name}` on device {device!r} must be finite and at most "
                    f"{limit / SCALE:.3g}, got {largest_of(tensor):.3g}."
                )


def _mismatch(expected: Params, given: Params) -> str:
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    return f"missing {missing!r}, unknown {unknown!r}"
