"""Models that have a part of the shared tensors only: the first rows or columns of them.

Their tensors have the same names as the shared part, and may be smaller in one dimension.
"""

from collections.abc import Callable, Mapping

from torch import Size, Tensor

from partita.params import Params

Fill = Callable[[Tensor], Tensor]
"""From a tensor of the shared part to the values that count where a device's model lacks them."""


def fits(own: Mapping[str, Size], shared: Mapping[str, Size]) -> bool:
    """Return whether tensors are those of the shared part, or smaller than them in one dimension.

    >>> fits({"w": Size([2, 3])}, {"w": Size([4, 3])}), fits({"w": Size([2, 2])}, {"w": Size([4, 3])})
    (True, False)
    """
    return own.keys() == shared.keys() and all(_fits(own[name], shape) for name, shape in shared.items())


def narrowed(tensor: Tensor, shape: Size) -> Tensor:
    """Return the first rows or columns of a tensor, a view; the tensor itself if it has the shape."""
    return tensor if tensor.shape == shape else tensor[tuple(map(slice, shape))]


def padded(own: Params, sent: Params, fill: Fill) -> dict[str, Tensor]:
    """Return tensors in the shapes of those that were sent, with filled values where they are smaller."""
    found: dict[str, Tensor] = {}
    for name, tensor in own.items():
        if tensor.shape == sent[name].shape:
            found[name] = tensor
            continue
        found[name] = fill(sent[name]).clone()
        narrowed(found[name], tensor.shape).copy_(tensor.detach())
    return found


def _fits(own: Size, shared: Size) -> bool:
    differing = [(a, b) for a, b in zip(own, shared, strict=False) if a != b]
    return len(own) == len(shared) and len(differing) <= 1 and all(a < b for a, b in differing)
