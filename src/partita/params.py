"""Named tensors: copying, differences, digests, and the exact weighted mean.

The mean is a sum of integers, so its bits do not depend on the order or grouping of replies: each change is
rounded once to a multiple of 2^-36 (2^-100 in float64), multiplied by the device's integer weight and added
up in int64. A sum that could overflow is carried in several int64 tensors.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

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
FLOAT64_SCALE = 2.0**100
"""The same for float64: no change of 2^-48 (3.6e-15) or more is rounded, as it has 53 significant bits."""
_LARGEST = torch.finfo(torch.float32).max
"""Largest absolute change, of any floating-point type."""
_CHUNK = 65_536
"""Elements rounded at a time: as many as fit in a core's cache."""
_LIMB = 32
"""Bits of each limb of a sum but the highest."""
_BASE = 2**_LIMB
_HIGHEST = 62
"""Bits of the highest limb, so that one more term cannot overflow int64."""
_DIGIT = 30
"""Bits of a weight that are multiplied at a time: with a limb, they fit in int64."""


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


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The integer sums of a weighted mean, which can be sent elsewhere and merged into another mean."""

    weight: int
    """The sum of the weights."""
    limbs: Mapping[str, Tensor]
    """For each floating-point tensor, an int64 matrix with a row per limb, low limbs first."""
    bounds: Mapping[str, int]
    """For each of them, a bound of the sum's absolute values."""
    lowest: str | None
    """The lowest device id, of which the integer tensors are."""
    whole: Params
    """The changes of integer tensors."""


class WeightedMean:
    """The weighted mean of changes, exact in any order and grouping.

    Integer tensors have no mean: they are taken from the lowest device id.

    >>> mean = WeightedMean({"u": torch.zeros(1)})
    >>> mean.add("a", {"u": torch.tensor([1.0])}, weight=1)
    >>> mean.add("b", {"u": torch.tensor([5.0])}, weight=3)
    >>> mean.value()["u"].item()
    4.0
    """

    def __init__(self, like: Params) -> None:
        self.like = like
        self.weight = 0
        self._sums = {name: _Sum(tensor) for name, tensor in like.items() if tensor.is_floating_point()}
        self._lowest: str | None = None
        self._whole: Params = {}

    def add(self, device: str, change: Params, weight: int) -> None:
        """Add the change of `device`, in place; an error leaves the mean unchanged.

        Raises:
            ValueError: the change does not fit the shared part, is not finite or is too large for float32.
        """
        largest = self._check(device, change, weight)
        for name, total in self._sums.items():
            total.add(change[name], weight, largest[name])
        self.weight += weight
        self._keep_lowest(device, {n: t for n, t in change.items() if n not in self._sums})

    def totals(self) -> Totals:
        """Return the sums so far, as copies."""
        return Totals(
            weight=self.weight,
            limbs={name: total.limbs() for name, total in self._sums.items()},
            bounds={name: total.bound for name, total in self._sums.items()},
            lowest=self._lowest,
            whole=self._whole,
        )

    def merge(self, totals: Totals) -> None:
        """Add everything that another mean has added, in place; an error leaves the mean unchanged.

        Raises:
            ValueError: the sums do not fit the shared part.
        """
        self._check_totals(totals)
        for name, total in self._sums.items():
            total.merge(totals.limbs[name], totals.bounds[name])
        self.weight += totals.weight
        if totals.lowest is not None:
            self._keep_lowest(totals.lowest, totals.whole)

    def value(self) -> dict[str, Tensor]:
        """Return the mean, in the dtypes of the shared part (integers as int64)."""
        if not self.weight:
            raise ValueError("The mean of no changes is undefined.")
        return {
            name: self._sums[name].over(self.weight, like) if name in self._sums else self._whole[name]
            for name, like in self.like.items()
        }

    def _keep_lowest(self, device: str, whole: Params) -> None:
        if self._lowest is None or device < self._lowest:
            self._lowest, self._whole = device, cloned(whole)

    def _check_totals(self, totals: Totals) -> None:
        own = {name: tensor.numel() for name, tensor in self.like.items() if name in self._sums}
        given = {name: limbs.shape[-1] for name, limbs in totals.limbs.items()}
        if given != own or (totals.lowest is not None and totals.whole.keys() != self.like.keys() - own):
            raise ValueError("The sums must have the names and sizes of the shared part.")

    def _check(self, device: str, change: Params, weight: int) -> dict[str, float]:
        """Check that a change fits, and return the largest absolute value of each floating-point tensor."""
        if weight < 1:
            raise ValueError(f"The weight of device {device!r} must be at least 1, got {weight}.")
        if change.keys() != self.like.keys():
            raise ValueError(
                f"The change of device {device!r} must have the names of the shared part: "
                f"{_mismatch(self.like, change)}."
            )
        for name, tensor in change.items():
            if tensor.shape != self.like[name].shape:
                raise ValueError(
                    f"The change of `{name}` on device {device!r} must have the shape "
                    f"{tuple(self.like[name].shape)}, got {tuple(tensor.shape)}."
                )
        largest = {name: largest_of(change[name]) for name in self._sums}
        for name, value in largest.items():
            if not value <= _LARGEST:
                raise ValueError(
                    f"The change of `{name}` on device {device!r} must be finite and at most "
                    f"{_LARGEST:.3g}, the largest float32, got {value:.3g}."
                )
        return largest


class _Sum:
    """The exact sum of weight x round(change x scale), an integer for each element of a tensor.

    It is held in limbs, low ones first: limb k counts multiples of 2^(32 k), and all limbs but the highest
    are from 0 to below 2^32. One limb is enough until the sum could reach 2^62.
    """

    def __init__(self, like: Tensor) -> None:
        self._scale = FLOAT64_SCALE if like.dtype == torch.float64 else SCALE
        self.bound = 0
        self._limbs = [torch.zeros(like.numel(), dtype=torch.int64)]

    def add(self, change: Tensor, weight: int, largest: float) -> None:
        """Add a change with its weight, in place; `largest` is its largest absolute value."""
        self._widen(weight * (int(largest * self._scale) + 1))
        values = change.detach().reshape(-1).split(_CHUNK)
        if len(self._limbs) == 1:
            for limb, chunk in zip(self._limbs[0].split(_CHUNK), values, strict=True):
                limb.add_(_rounded(chunk, self._scale).long(), alpha=weight)
            return
        for chunk, *limbs in zip(values, *(limb.split(_CHUNK) for limb in self._limbs), strict=True):
            whole = _rounded(chunk, self._scale)
            for digit, power in _digits(weight):
                _add(limbs, whole * power, digit)

    def limbs(self) -> Tensor:
        """Return a copy of all limbs, a row for each."""
        return torch.stack(self._limbs)

    def merge(self, limbs: Tensor, bound: int) -> None:
        """Add another sum, in place, given its limbs and its bound."""
        self._widen(bound)
        for own, limb in zip(self._limbs, limbs, strict=False):
            own.add_(limb)
        _carry(self._limbs)

    def over(self, weight: int, like: Tensor) -> Tensor:
        """Return the sum divided by a weight and by the scale, in the shape and type of `like`."""
        total = self._limbs[-1].double()
        for limb in reversed(self._limbs[:-1]):
            total.mul_(_BASE).add_(limb)
        mean = total.div_(weight * self._scale)
        return (mean if like.dtype == torch.float64 else mean.float()).to(like.dtype).view(like.shape)

    def _widen(self, further: int) -> None:
        """Add as many limbs, in place, as it takes to add an integer of up to `further`."""
        self.bound += further
        while self.bound.bit_length() > _HIGHEST + _LIMB * (len(self._limbs) - 1):
            self._limbs.append(torch.zeros_like(self._limbs[0]))
            _carry(self._limbs)


def _digits(weight: int) -> Iterator[tuple[int, float]]:
    """Yield the digits of a weight with their powers of 2."""
    for shift in range(0, weight.bit_length(), _DIGIT):
        yield (weight >> shift) % 2**_DIGIT, 2.0**shift


def _rounded(values: Tensor, scale: float) -> Tensor:
    """Return the values times a scale, rounded to whole numbers, in float64."""
    double = values.double()  # The values themselves where they are float64: these must stay as they are.
    return (double * scale if double is values else double.mul_(scale)).round_()


def _add(limbs: list[Tensor], whole: Tensor, weight: int) -> None:
    """Add a weight times whole numbers, given as float64, to a sum in place. No step rounds."""
    for limb in limbs[:-1]:
        above = whole.div(_BASE).floor_()
        limb.add_((whole - above * _BASE).long(), alpha=weight)
        whole = above
    limbs[-1].add_(whole.long(), alpha=weight)
    _carry(limbs)


def _carry(limbs: list[Tensor]) -> None:
    """Bring all limbs but the highest to 0 up to below 2^32, in place, without a change of their sum."""
    for low, high in pairwise(limbs):
        high.add_(low >> _LIMB)
        low.bitwise_and_(_BASE - 1)


def _mismatch(expected: Params, given: Params) -> str:
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    return f"missing {missing!r}, unknown {unknown!r}"
