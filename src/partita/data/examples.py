"""The examples of one split of one device, batched by position."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import default_collate

_ARRAYS = (Tensor, ndarray)

Batch = Any
"""The batch that a task's loss receives: a tuple of tensors by default, else whatever the data returns."""


@runtime_checkable
class Examples(Protocol):
    """A number of examples that can be batched by position."""

    def __len__(self) -> int:
        """Return the number of examples."""
        ...

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions` as one batch."""
        ...


@dataclass(frozen=True)
class TensorExamples:
    """Examples as a tuple of tensors: example i is row i of each."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        lengths = [tensor.size(0) for tensor in self.tensors]
        if len(set(lengths)) != 1:
            raise ValueError(f"All tensors of a split must have the same number of rows, got {lengths}.")

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def batch_at(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the rows at `positions` of every tensor."""
        return tuple(_rows(tensor, positions) for tensor in self.tensors)


@dataclass(frozen=True)
class ItemExamples:
    """Examples in a list or a map-style `torch.utils.data.Dataset`, collated as in a DataLoader."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the items at `positions`, collated."""
        return default_collate([self.items[position] for position in positions.tolist()])


@dataclass(frozen=True)
class NamedExamples:
    """Examples as a dict of tensors: a batch is a dict of their rows."""

    fields: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def batch_at(self, positions: Tensor) -> dict[str, Tensor]:
        """Return the rows at `positions` of every field."""
        return {name: field[positions] for name, field in self.fields.items()}


def _rows(tensor: Tensor, positions: Tensor) -> Tensor:
    # `index_select` is faster and gives the same rows, but not always in the same layout.
    return tensor.index_select(0, positions) if tensor.is_contiguous() else tensor[positions]


def examples_of(split: Any) -> Examples:
    """Return a split's data, of any kind that `Task` accepts, as examples."""
    if isinstance(split, tuple) and split and all(isinstance(field, _ARRAYS) for field in split):
        return TensorExamples(tuple(map(torch.as_tensor, split)))
    if isinstance(split, Mapping) and split:
        fields = {name: torch.as_tensor(field) for name, field in split.items()}
        TensorExamples(tuple(fields.values()))
        return NamedExamples(fields)
    if isinstance(split, Examples):
        return split
    if isinstance(split, Sized) and hasattr(split, "__getitem__"):
        return ItemExamples(split)  # pyright: ignore[reportArgumentType]
    raise TypeError(
        "A split must be a tuple or a dict of tensors or arrays, a list of examples, a map-style Dataset or "
        f"have `batch_at` and `__len__`, got {type(split).__name__}."
    )


def in_order(examples: Examples, batch_size: int) -> Iterator[tuple[Batch, int]]:
    """Yield all examples once, in order, as batches with their sizes."""
    for positions in torch.arange(len(examples)).split(batch_size):
        yield examples.batch_at(positions), len(positions)


@dataclass(frozen=True)
class Shuffled:
    """Batches without end, pass after pass; each iteration over it begins a new pass.

    A pass is a new permutation of the examples. It keeps its last, shorter batch.
    """

    examples: Examples
    batch_size: int
    generator: torch.Generator
    leaves_out_one: Callable[[], bool] = lambda: False
    """Asked at the beginning of a pass whose last batch has one example: whether to leave it out."""

    def __iter__(self) -> Iterator[Batch]:
        return (batch for _, batch in self.with_positions())

    def with_positions(self) -> Iterator[tuple[Tensor, Batch]]:
        """Yield the same batches, each with the positions of its examples."""
        while True:
            count = len(self.examples)
            permutation = torch.randperm(count, generator=self.generator)
            batches = (permutation,) if count <= self.batch_size else permutation.split(self.batch_size)
            ends_with_one = count % self.batch_size == 1 % self.batch_size
            if ends_with_one and self.leaves_out_one():
                batches = batches[:-1]
            for positions in batches:
                yield positions, self.examples.batch_at(positions)


def batches_per_epoch(examples: Examples, batch_size: int) -> int:
    """Return the number of batches in one epoch."""
    return -(-len(examples) // batch_size)
