"""A second kind of device, for tests on machines without a GPU.

Its tensors say that they are on `meta` and hold their values on the CPU. Like tensors on a GPU, they meet no
tensor on the CPU except in copies, unless that is a scalar, and do not become arrays. Like tensors on MPS,
they are never float64. So a whole run goes through every line that places tensors, with real numbers.

It cannot show what only a real accelerator has: kernels with other rounding, operations that it lacks, its
memory, its random generator, and functions that torch refuses for some combinations of devices only.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class There(Tensor):
    """A tensor on the second device."""

    here: Tensor
    """Its values."""

    @staticmethod
    def __new__(cls: type["There"], here: Tensor) -> "There":
        if here.dtype == torch.float64:
            raise TypeError("The second device has no float64.")
        strides, offset = here.stride(), here.storage_offset()
        there = Tensor._make_wrapper_subclass(
            cls, here.shape, strides=strides, storage_offset=offset, dtype=here.dtype, device=DEVICE
        )
        there.here = here
        return there

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"There({self.here!r})"

    def tolist(self) -> Any:
        return self.here.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("A tensor on the second device does not become an array.")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with SecondDevice():
            return function(*args, **(kwargs or {}))


class SecondDevice(TorchDispatchMode):
    """While it is active, there is the second device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_there = any(isinstance(tensor, There) for tensor in tensors)
        if is_there and function not in _COPIES:
            for tensor in tensors:
                if tensor.dim() and not isinstance(tensor, There):
                    raise RuntimeError(f"{function}: expected all tensors to be on the same device.")
        goes_there = is_there
        own = tree_map(lambda leaf: leaf.here if isinstance(leaf, There) else leaf, (args, kwargs))
        if kwargs.get("device") is not None:
            goes_there = torch.device(kwargs["device"]) == DEVICE
            own[1]["device"] = torch.device("cpu")
        elif function in _COPIES:
            goes_there = isinstance(args[0], There)
        result = function(*own[0], **own[1])
        if goes_there:
            result = tree_map(lambda leaf: There(leaf) if isinstance(leaf, Tensor) else leaf, result)
        if goes_there != is_there:
            return result
        return return_and_correct_aliasing(function, args, kwargs, result)
