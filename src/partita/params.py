"""Named tensors: copying, differences, digests, and the exact weighted mean.

The mean is a sum of integers (`sums.py`), so its bits do not depend on the order or grouping of replies.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from partita.seals import SCHEMA
from partita.sums import LARGEST, ExactSum, groups_of, largest_of, room_for

Params = Mapping[str, Tensor]
"""Tensors by name."""

Aggregation = Callable[[int, int], float]
"""Returns the factor by which the server scales the mean change of a tensor that a method sends, from the
number of devices that replied and the number of all devices."""


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
    if not target:
        return
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


def is_finite(tensor: Tensor) -> bool:
    """Return whether every value of a tensor is finite."""
    # Sums are faster than maxima, and a value that is not finite makes a sum that is not; so may large ones.
    return math.isfinite(tensor.detach().sum().item()) or math.isfinite(largest_of(tensor))


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


def to_bytes(params: Params, **metadata: str) -> bytes:
    """Return the tensors in the safetensors format, with at most one entry of `metadata`.

    Only one, because the format does not fix the order of several, and equal tensors must give equal bytes.
    """
    if len(metadata) > 1:
        raise ValueError(f"At most one metadata entry is allowed, got {sorted(metadata)!r}.")
    tensors = {name: tensor.detach().contiguous() for name, tensor in params.items()}
    return safetensors.torch.save(tensors, metadata=metadata or None)


def from_bytes(content: bytes) -> dict[str, Tensor]:
    """Return the tensors that `to_bytes` wrote."""
    return safetensors.torch.load(content)


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata that `to_bytes` wrote.

    >>> metadata_of(to_bytes({"u": torch.zeros(2)}, device="ann"))
    {'device': 'ann'}
    """
    size = int.from_bytes(content[:_LENGTH], "little")
    return json.loads(content[_LENGTH : _LENGTH + size]).get("__metadata__", {})


_SEAL = "partita"
"""The metadata entry of a sealed file: JSON with the digest, the schema, and texts about the tensors."""
_UNKNOWN = "0" * 64
"""Takes the place of the digest in the bytes that it is of."""
_LENGTH = 8
"""The first bytes of a safetensors file, which hold the length of the header after them."""
_BEGINNING = json.dumps({"__metadata__": {_SEAL: '{"sha256": "'}}, separators=(",", ":"))[:-3].encode()
"""The beginning of the header of a sealed file: the digest follows."""
_LABEL_WIDTH = 24
"""The label of a round is filled up to so many characters, so that a file's size does not depend on it."""


def sealed_pieces(params: Params, **about: str) -> tuple[bytes, memoryview]:
    """Return the tensors in the safetensors format, with texts about them, a schema version and a digest.

    The digest is that of the whole content, with zeros in its own place. The content is returned in two
    pieces, because to join them takes its memory once more.
    """
    seal = {"sha256": _UNKNOWN, "schema": SCHEMA, **about}
    content = to_bytes(params, **{_SEAL: json.dumps(seal)})
    place = _LENGTH + len(_BEGINNING)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:place] + digest, memoryview(content)[place + len(digest) :]


def sealed_bytes(params: Params, **about: str) -> bytes:
    """Return the content of `sealed_pieces`."""
    return b"".join(sealed_pieces(params, **about))


def part_pieces(params: Params, *, device: str, label: str) -> tuple[bytes, memoryview]:
    """Return the content of the file of a device's personal part after the round `label`, in two pieces."""
    return sealed_pieces(params, device=device, round=f"{label:<{_LABEL_WIDTH}}")


def about(content: bytes) -> dict[str, str] | None:
    """Return the texts that `sealed_bytes` has written about the tensors; None where there is no seal.

    >>> about(sealed_bytes({"u": torch.zeros(2)}, device="ann"))
    {'device': 'ann'}

    Args:
        content: the content of a file, or its header alone.

    Raises:
        ValueError: the header is damaged, or another version of Partita has written it.
    """
    if not content.startswith(_BEGINNING, _LENGTH):
        return None
    size = int.from_bytes(content[:_LENGTH], "little")
    try:
        seal = dict(json.loads(json.loads(content[_LENGTH : _LENGTH + size])["__metadata__"][_SEAL]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("its header cannot be read") from None
    if seal.pop("schema", None) != SCHEMA:
        raise ValueError(f"it has another schema than {SCHEMA}, the one that this version of Partita reads")
    del seal["sha256"]
    return seal


def unsealed_tensors(content: bytes) -> dict[str, Tensor]:
    """Return the tensors that `sealed_bytes` wrote; those of a file without a seal as they are.

    Raises:
        ValueError: the content is damaged, or is not in the safetensors format.
    """
    if content.startswith(_BEGINNING, _LENGTH):
        begin = _LENGTH + len(_BEGINNING)
        end = begin + len(_UNKNOWN)
        digest = hashlib.sha256(content[:begin] + _UNKNOWN.encode())
        digest.update(memoryview(content)[end:])
        if content[begin:end] != digest.hexdigest().encode():
            raise ValueError("its content is not that of its sha256")
    try:
        return from_bytes(content)
    except SafetensorError as error:
        raise ValueError(f"it is not a safetensors file ({error})") from None


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
                f"{_mismatch(self.like, change)}."
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


def _mismatch(expected: Params, given: Params) -> str:
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    return f"missing {missing!r}, unknown {unknown!r}"
