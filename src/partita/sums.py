"""Exact sums: their bits do not depend on the order or grouping of what is added.

Each value is rounded once to a multiple of 2^-36 (2^-100 in float64), multiplied by an integer weight and
added up as a whole number: in float64 while that is exact, which is fastest, then in int64. A sum that could
overflow is carried in several int64 tensors.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor

SCALE = 2.0**36
"""A value is counted in steps of 1 / SCALE (about 1.5e-11)."""
FLOAT64_SCALE = 2.0**100
"""The same for float64: no value of 2^-48 (3.6e-15) or more is rounded, as it has 53 significant bits."""
_SMALL = 16_384
"""Tensors of up to so many elements are added up together: each call of torch has its price."""
_CHUNK = 65_536
"""Elements rounded at a time: as many as fit in a core's cache."""
_EXACT = 2**53
"""Whole numbers up to this one are exact in float64."""
_LIMB = 32
"""Bits of each limb of a sum but the highest."""
_BASE = 2**_LIMB
_HIGHEST = 62
"""Bits of the highest limb, so that one more term cannot overflow int64."""
_DIGIT = 30
"""Bits of a weight that are multiplied at a time: with a limb, they fit in int64."""
_ROUNDS = torch.tensor(1.5 * 2.0**52, dtype=torch.float64)
"""A float64 of up to 2^51 plus this one is rounded to a whole number, to the nearest and halves to even; the
bits of the result, as an integer, are those of this number plus the whole number."""
_FAST = 2.0**51
_ROUNDS_BITS = _ROUNDS.view(torch.int64)


def groups_of(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield floating-point tensors in groups to add up together: the small ones, and each large one alone."""
    small: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    for name, tensor in tensors.items():
        if tensor.numel() <= _SMALL:
            small[tensor.dtype == torch.float64][name] = tensor
        else:
            yield {name: tensor}
    yield from filter(None, small.values())


class ExactSum:
    """The sum of weight x round(value x scale), an integer for each element of some tensors.

    It is held in float64 until it could reach 2^53, and from then on in int64 limbs, low ones first: limb k
    counts multiples of 2^(32 k), and all limbs but the highest are from 0 to below 2^32. One limb is enough
    until the sum could reach 2^62.

    Args:
        like: tensors of the shapes and types to add up; all of them float64, or none.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like = like
        self._sizes = [tensor.numel() for tensor in like.values()]
        self._is_double = any(tensor.dtype == torch.float64 for tensor in like.values())
        self._scale = FLOAT64_SCALE if self._is_double else SCALE
        self.bound = 0
        """A bound of the sum's absolute values."""
        self._whole: Tensor | None = torch.zeros(sum(self._sizes), dtype=torch.float64)
        self._limbs: list[Tensor] = []

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._like)

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the values of all tensors, one after the other."""
        parts = [values[name].detach().reshape(-1) for name in self._like]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def add(self, values: Tensor, weight: int, largest: float) -> None:
        """Add flat values with a weight, in place; `largest` is their largest absolute value."""
        self._widen(weight * (int(largest * self._scale) + 1))
        if self._whole is not None:
            _add_whole(self._whole, values, self._scale, weight, largest)
            return
        for chunk, *limbs in zip(*map(_chunks, (values, *self._limbs)), strict=True):
            if len(limbs) > 1:
                whole = _rounded(chunk, self._scale)
                for digit, power in _digits(weight):
                    _add(limbs, whole * power, digit)
            elif chunk.dtype == torch.float64 or largest * self._scale > _FAST:
                limbs[0].add_(_rounded(chunk, self._scale).long(), alpha=weight)
            else:
                limbs[0].add_(_rounded_fast(chunk, self._scale), alpha=weight)

    def limbs(self) -> dict[str, Tensor]:
        """Return a copy of all limbs by tensor, a row for each limb."""
        limbs = self._limbs if self._whole is None else [self._whole.long()]
        parts = torch.stack(limbs).split(self._sizes, dim=1)
        return {name: part.contiguous() for name, part in zip(self._like, parts, strict=True)}

    def merge(self, limbs: Mapping[str, Tensor], bound: int) -> None:
        """Add another sum, in place, given its limbs by tensor and its bound."""
        self._widen(bound)
        for position, own in enumerate(self._limbs if self._whole is None else [self._whole]):
            for part, name in zip(own.split(self._sizes), self._like, strict=True):
                if position < len(limbs[name]):
                    part.add_(limbs[name][position])
        _carry(self._limbs)

    def over(self, weight: int) -> dict[str, Tensor]:
        """Return the sum divided by a weight and by the scale, in the shapes and types of the tensors."""
        total = self._limbs[-1].double() if self._whole is None else self._whole.clone()
        for limb in reversed(self._limbs[:-1]):
            total.mul_(_BASE).add_(limb)
        mean = total.div_(weight * self._scale)
        parts = (mean if self._is_double else mean.float()).split(self._sizes)
        return {
            name: part.to(like.dtype, copy=len(parts) > 1).view(like.shape)
            for part, (name, like) in zip(parts, self._like.items(), strict=True)
        }

    def _widen(self, further: int) -> None:
        """Add as many limbs, in place, as it takes to add an integer of up to `further`."""
        self.bound += further
        if self.bound < _EXACT:
            return
        if self._whole is not None:
            self._limbs, self._whole = [self._whole.long()], None
        while self.bound.bit_length() > _HIGHEST + _LIMB * (len(self._limbs) - 1):
            self._limbs.append(torch.zeros_like(self._limbs[0]))
            _carry(self._limbs)


def _chunks(values: Tensor) -> tuple[Tensor, ...]:
    return (values,) if len(values) <= _CHUNK else values.split(_CHUNK)


def _add_whole(total: Tensor, values: Tensor, scale: float, weight: int, largest: float) -> None:
    """Add a weight times values, rounded, to a sum in float64, in place."""
    buffer = torch.empty(min(len(total), _CHUNK), dtype=torch.float64)
    for chunk, part in zip(_chunks(values), _chunks(total), strict=True):
        whole = buffer[: len(chunk)].copy_(chunk)
        if largest * scale <= _FAST:
            torch.add(_ROUNDS, whole, alpha=scale, out=whole).sub_(_ROUNDS)
        else:
            whole.mul_(scale).round_()
        part.add_(whole, alpha=weight)


def _digits(weight: int) -> Iterator[tuple[int, float]]:
    """Yield the digits of a weight with their powers of 2."""
    for shift in range(0, weight.bit_length(), _DIGIT):
        yield (weight >> shift) % 2**_DIGIT, 2.0**shift


def _rounded(values: Tensor, scale: float) -> Tensor:
    """Return the values times a scale, rounded to whole numbers, in float64."""
    double = values.double()  # The values themselves where they are float64: these must stay as they are.
    return (double * scale if double is values else double.mul_(scale)).round_()


def _rounded_fast(values: Tensor, scale: float) -> Tensor:
    """Return the same as int64, for values that are not float64 and that are at most 2^51 times the scale."""
    double = values.double()
    torch.add(_ROUNDS, double, alpha=scale, out=double)
    return double.view(torch.int64).sub_(_ROUNDS_BITS)


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
