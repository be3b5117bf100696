"""Named tensors: copying, differences, sizes, digests, and their bytes."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping

import safetensors.torch
import torch
from torch import Tensor, nn

from partita.sums import largest_of

Params = Mapping[str, Tensor]
"""Tensors by name."""

Aggregation = Callable[[int, int], float]
"""Returns the factor by which the server scales the mean change of a tensor that a method sends, from the
number of devices that replied and the number of all devices."""

LENGTH = 8
"""The first bytes of a safetensors file, which hold the length of the header after them."""


def cloned(params: Params) -> dict[str, Tensor]:
    """Return detached copies of the tensors."""
    return {name: tensor.detach().clone() for name, tensor in params.items()}


def shapes_of(params: Params) -> dict[str, torch.Size]:
    """Return the shape of each tensor."""
    return {name: tensor.shape for name, tensor in params.items()}


def copy_into(target: Params, source: Params) -> None:
    """Copy the values of `source` into the tensors of `target`, in place and never aliased."""
    if target.keys() != source.keys():
        raise ValueError(f"The names differ: {mismatch(target, source)}.")
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
    size = int.from_bytes(content[:LENGTH], "little")
    return json.loads(content[LENGTH : LENGTH + size]).get("__metadata__", {})


def mismatch(expected: Params, given: Params) -> str:
    """Return the names that `given` lacks and those that it has besides, in words."""
    missing, unknown = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    return f"missing {missing!r}, unknown {unknown!r}"
