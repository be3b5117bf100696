"""Exact sums: their bits do not depend on the order or grouping of what is added.

Each value is rounded once to a multiple of 2^-36 (2^-100 in float64), multiplied by an integer weight and
added up as a whole number: in float64 while that is exact, which is fastest, then in int64. A sum that could
overflow is carried in several int64 tensors.

Values are read once, a chunk at a time, so that all that is done with a chunk is done in a core's cache.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, repeat

import torch
from torch import Tensor

SCALE = 2.0**36
"""A value is counted in steps of 1 / SCALE (about 1.5e-11)."""
FLOAT64_SCALE = 2.0**100
"""The same for float64: no value of 2^-48 (3.6e-15) or more is rounded, as it has 53 significant bits."""
LARGEST = torch.finfo(torch.float32).max
"""The largest absolute value that can be added, of any floating-point type."""
_SMALL = 16_384
"""Tensors of up to so many elements are added up together: each call of torch has its price."""
_CHUNK = 131_072
"""Elements added up at a time: as many as fit in a core's cache."""
_WAITING = 131_072
"""Elements of small tensors, of several devices, that wait to be added up together."""
_EXACT = 2**53
"""Whole numbers up to this one are exact in float64."""
_LIMB = 32
"""Bits of each limb of a sum but the highest."""
_BASE = 2**_LIMB
_HIGHEST = 62
"""Bits of the highest limb, so that one more term cannot overflow int64."""
_DIGIT = 30
"""Bits of a weight that are multiplied at a time: with a limb, they fit in int64."""

Room = tuple[Tensor, Tensor]
"""Memory for a chunk, in float32 and in float64, which sums that are added to in turn may share."""


def groups_of(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield floating-point tensors in groups to add up together: small ones by type, each large one alone."""
    small: dict[torch.dtype, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() <= _SMALL:
            small.setdefault(tensor.dtype, {})[name] = tensor
        else:
            yield {name: tensor}
    yield from small.values()


def room_for(groups: Sequence[Mapping[str, Tensor]]) -> Room:
    """Return room for one chunk of any group."""
    sizes = [sum(tensor.numel() for tensor in group.values()) for group in groups]
    size = min(max(sizes, default=0), _CHUNK)
    return torch.empty(size, dtype=torch.float32), torch.empty(size, dtype=torch.float64)


def largest_of(tensor: Tensor) -> float:
    """Return the largest absolute value; NaN where there is one."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.detach().aminmax()
    return max(-low.item(), high.item())


class ExactSum:
    """The sum of weight x round(value x scale), an integer for each element of some tensors.

    It is held in limbs, low ones first: limb k counts multiples of 2^(32 k), and all limbs but the highest
    are from 0 to below 2^32. One limb is enough until the sum could reach 2^62; it is a float64 tensor until
    the sum could reach 2^53. All others are int64.

    Args:
        like: tensors of the shapes and types to add up, all of one type.
        room: memory to compute in.
    """

    def __init__(self, like: Mapping[str, Tensor], room: Room) -> None:
        self._like = like
        self._single, self._double = room
        self._sizes = [tensor.numel() for tensor in like.values()]
        self._is_double = any(tensor.dtype == torch.float64 for tensor in like.values())
        self._scale = FLOAT64_SCALE if self._is_double else SCALE
        self._bound = 0
        self._weights: list[int] = []

    @cached_property
    def _limbs(self) -> list[Tensor]:
        """The limbs, which take memory only once something is added."""
        return [torch.zeros(sum(self._sizes), dtype=torch.float64)]

    @cached_property
    def _start(self) -> Sequence[Tensor]:
        """The values of `like`, in chunks."""
        return _chunks(_joined(self._parts(self._like)))

    @cached_property
    def _waiting(self) -> Tensor | None:
        """Memory for values that wait, a row for each device; None for large tensors and for other types."""
        size = sum(self._sizes)
        if not 0 < size <= _SMALL or any(tensor.dtype != torch.float32 for tensor in self._like.values()):
            return None
        return torch.empty(_WAITING // size, size) if _is_moderate(self._start[0]) else None

    @cached_property
    def _rows(self) -> Sequence[Tensor]:
        """The rows of this memory."""
        return () if self._waiting is None else self._waiting.unbind()

    @property
    def bound(self) -> int:
        """A bound of the sum's absolute values."""
        self._catch_up()
        return self._bound

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._like)

    def add(self, tensors: Mapping[str, Tensor], weight: int, *, is_change: bool) -> bool:
        """Add tensors with a weight, in place; if they are no change, add their change since `like`.

        Return whether they could be added: where a value is not finite or too large, the sum is as it was.
        """
        parts = self._parts(tensors)
        if not is_change and self._put_off(parts, weight):
            return True
        values = _chunks(_joined(parts))
        before = repeat(None) if is_change else self._start
        added = self._add(zip(values, before, strict=False), weight)
        if added < len(values):
            self._add(zip(values[:added], before, strict=False), -weight)  # Exactly what was added.
        return added == len(values)

    def limbs(self) -> dict[str, Tensor]:
        """Return all limbs by tensor, a row for each limb; to add more may change them."""
        self._catch_up()
        only, *others = self._limbs
        limbs = torch.stack(self._limbs) if others else only[None]
        return dict(zip(self._like, limbs.split(self._sizes, dim=1), strict=True))

    def merge(self, limbs: Mapping[str, Tensor], bound: int) -> None:
        """Add another sum, in place, given its limbs by tensor and its bound."""
        is_first = not self.bound
        self._widen(bound)
        for position, own in enumerate(self._limbs):
            for part, name in zip(own.split(self._sizes), self._like, strict=True):
                if position < len(limbs[name]):
                    given = limbs[name][position]
                    part.copy_(given) if is_first else part.add_(given.to(part.dtype))
        _carry(self._limbs)

    def over(self, weight: int) -> dict[str, Tensor]:
        """Return the sum divided by a weight and by the scale, in the shapes and types of the tensors."""
        self._catch_up()
        mean = torch.empty(sum(self._sizes), dtype=torch.float64 if self._is_double else torch.float32)
        for chunk, *lower, highest in zip(_chunks(mean), *map(_chunks, self._limbs), strict=True):
            total = highest.double()
            for limb in reversed(lower):
                total = total * _BASE + limb
            chunk.copy_(total / (weight * self._scale))
        parts = mean.split(self._sizes)
        return {
            name: part.to(like.dtype, copy=len(parts) > 1).view(like.shape)
            for part, (name, like) in zip(parts, self._like.items(), strict=True)
        }

    def _parts(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the values of each tensor."""
        return [tensors[name].detach().reshape(-1) for name in self._like]

    def _put_off(self, parts: list[Tensor], weight: int) -> bool:
        """Let the values of a device wait for those of others, in place: each call of torch has its price.

        Return False where they must not wait, because adding them could fail.
        """
        rows = self._rows
        if not rows or any(part.dtype != torch.float32 for part in parts):
            return False
        if not _is_moderate(torch.cat(parts, out=rows[len(self._weights)])):
            return False
        self._weights.append(weight)
        if len(self._weights) == len(rows):
            self._catch_up()
        return True

    def _catch_up(self) -> None:
        """Add the values that wait, in place."""
        if not self._weights or self._waiting is None:
            return
        whole = self._waiting[: len(self._weights)].sub_(self._start[0]).mul_(self._scale).round_()
        self._widen(sum(map(abs, self._weights)) * int(largest_of(whole)))
        if self._limbs[0].dtype == torch.float64:
            # Each product and each sum on the way is a whole number below 2^53: exact in any order.
            self._limbs[0].addmv_(whole.double().t(), torch.tensor(self._weights, dtype=torch.float64))
        else:
            for row, weight in zip(whole, self._weights, strict=True):
                self._add_chunk(0, row, weight)
        self._weights = []

    def _add(self, chunks: Iterable[tuple[Tensor, Tensor | None]], weight: int) -> int:
        """Add chunks of values, or their changes since others, in place, as far as all of them are finite.

        Return the number of chunks that were added.
        """
        largest = number = 0
        for number, (values, before) in enumerate(chunks):
            found = self._whole(values, before)
            if found is None:
                return number
            whole, size = found
            if size > largest:
                self._widen(abs(weight) * (size - largest))
                largest = size
            self._add_chunk(number, whole, weight)
        return number + 1

    def _whole(self, values: Tensor, before: Tensor | None) -> tuple[Tensor, int] | None:
        """Return values, or their change, times the scale and rounded to whole numbers, and a bound of them.

        Return None if one of them is not finite or too large.
        """
        if not self._is_double and values.dtype != torch.float64:
            # A power of two as a factor, and rounding to whole numbers, are exact in float32.
            whole = _first(self._single, values.numel())
            if before is None:
                torch.mul(values, self._scale, out=whole).round_()
            else:
                torch.sub(values, before, out=whole).mul_(self._scale).round_()
            # No value is above the norm, and a value that is not finite makes a norm that is not.
            square = torch.dot(whole, whole).item()
            if math.isfinite(square):
                return whole, int(1.01 * math.sqrt(square)) + 1
        exact = values.double() if before is None else (values - before).double()
        largest = largest_of(exact)
        if not largest <= LARGEST:
            return None
        return (exact * self._scale).round_(), int(largest * self._scale) + 1

    def _add_chunk(self, number: int, whole: Tensor, weight: int) -> None:
        """Add a weight times whole numbers to a chunk of the sum, in place."""
        limbs = [_chunk(limb, number) for limb in self._limbs]
        if len(limbs) > 1:
            _add_digits(limbs, whole.double(), weight)
        elif limbs[0].dtype == torch.int64:
            limbs[0].add_(whole.long(), alpha=weight)
        else:
            limbs[0].add_(_first(self._double, whole.numel()).copy_(whole), alpha=weight)

    def _widen(self, further: int) -> None:
        """Add as many limbs, in place, as it takes to add an integer of up to `further`."""
        self._bound += further
        if self._bound < _EXACT:
            return
        self._limbs[0] = self._limbs[0].long()
        while self._bound.bit_length() > _HIGHEST + _LIMB * (len(self._limbs) - 1):
            self._limbs.append(torch.zeros_like(self._limbs[0]))
            _carry(self._limbs)


def _is_moderate(values: Tensor) -> bool:
    """Return whether the squares of values have a finite sum: a change between such values is finite, too."""
    return math.isfinite(torch.dot(values, values).item())


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the values of all parts, one after the other."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _chunk(values: Tensor, number: int) -> Tensor:
    """Return a chunk of values."""
    return values if values.numel() <= _CHUNK else values[number * _CHUNK : (number + 1) * _CHUNK]


def _chunks(values: Tensor) -> Sequence[Tensor]:
    """Return values in chunks, in one even if there are none."""
    return (values,) if values.numel() <= _CHUNK else values.split(_CHUNK)


def _first(values: Tensor, count: int) -> Tensor:
    """Return the first values."""
    return values if values.numel() == count else values[:count]


def _add_digits(limbs: list[Tensor], whole: Tensor, weight: int) -> None:
    """Add a weight times whole numbers, given as float64, to a sum in place. No step rounds."""
    sign = -1 if weight < 0 else 1
    for shift in range(0, abs(weight).bit_length(), _DIGIT):
        _add(limbs, whole * 2.0**shift, sign * ((abs(weight) >> shift) % 2**_DIGIT))


def _add(limbs: list[Tensor], whole: Tensor, weight: int) -> None:
    """Add a small weight times whole numbers to a sum, in place."""
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
