"""Tensors in memory that several processes share, without a name that could outlive them."""

import math
import mmap
import os
from typing import Any

import torch
from torch import Tensor

from partita.params import Params

_ALIGNMENT = 64
"""Bytes: every tensor begins at a multiple of this, as in memory of PyTorch's own."""

Layout = list[list[Any]]
"""For each tensor its name, type, shape and first byte."""


class SharedTensors:
    """Named tensors in shared memory; what one process writes, all others see.

    Args:
        descriptor: the file descriptor of the memory, which this object owns.
        layout: where each tensor is.
    """

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.descriptor = descriptor
        self.layout = layout
        memory = mmap.mmap(descriptor, 0)
        self.tensors = {name: _view(memory, *where) for name, *where in layout}

    def __del__(self) -> None:
        """Close the descriptor; the memory is freed with the last tensor in it."""
        os.close(self.descriptor)

    @classmethod
    def like(cls, params: Params) -> "SharedTensors":
        """Return new memory for tensors with these names, types and shapes, filled with zeros."""
        layout, size = _layout_of(params)
        descriptor = os.memfd_create("partita")
        os.ftruncate(descriptor, max(size, 1))
        return cls(descriptor, layout)

    def fits(self, params: Params) -> bool:
        """Return whether tensors have the names, types and shapes of these."""
        return _layout_of(params)[0] == self.layout

    def write(self, params: Params) -> None:
        """Copy tensors that fit to the memory."""
        for name, tensor in self.tensors.items():
            tensor.copy_(params[name].detach())


def _layout_of(params: Params) -> tuple[Layout, int]:
    """Return where each of these tensors is, and the size of all in bytes."""
    layout: Layout = []
    end = 0
    for name, tensor in params.items():
        begin = math.ceil(end / _ALIGNMENT) * _ALIGNMENT
        layout.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), begin])
        end = begin + tensor.nbytes
    return layout, end


def _view(memory: mmap.mmap, dtype: str, shape: list[int], begin: int) -> Tensor:
    kind, count = getattr(torch, dtype), math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=begin).view(shape)
