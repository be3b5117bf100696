"""The examples of one split of one device, taken in batches by position."""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from numpy import ndarray
from torch import Tensor
from torch.utils.data import default_collate

Batch = Any
"""What a task's loss takes: a tuple of tensors by default, else whatever the data gives."""


@runtime_checkable
class Examples(Protocol):
    """Examples that can be counted and taken in batches."""

    def __len__(self) -> int:
        """Return how many examples there are."""
        ...

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions` as one batch."""
        ...


@dataclass(frozen=True)
class TensorExamples:
    """Examples whose fields are tensors: example i is row i of each."""

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        lengths = [len(tensor) for tensor in self.tensors]
        if len(set(lengths)) != 1:
            raise ValueError(f"All tensors of a split must have as many rows, got {lengths}.")

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch_at(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the rows at `positions` of every tensor."""
        return tuple(tensor[positions] for tensor in self.tensors)


@dataclass(frozen=True)
class ItemExamples:
    """Examples of a list or a map-style `torch.utils.data.Dataset`, collated as a DataLoader does."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the items at `positions`, collated."""
        return default_collate([self.items[position] for position in positions.tolist()])


@dataclass(frozen=True)
class NamedExamples:
    """Examples whose fields are tensors by name: a batch is a dict of their rows."""

    fields: Mapping[str, Tensor]

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def batch_at(self, positions: Tensor) -> dict[str, Tensor]:
        """Return the rows at `positions` of every field."""
        return {name: field[positions] for name, field in self.fields.items()}


def examples_of(split: Any) -> Examples:
    """Return a split's data as examples, whatever of the kinds that `Task` takes it is."""
    if isinstance(split, tuple) and split and all(isinstance(field, Tensor | ndarray) for field in split):
        return TensorExamples(tuple(torch.as_tensor(field) for field in split))
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


def shuffled(examples: Examples, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Yield batches without end: epochs of fresh permutations, the last batch of each as short as it is."""
    while True:
        for positions in torch.randperm(len(examples), generator=generator).split(batch_size):
            yield examples.batch_at(positions)


def batches_per_epoch(examples: Examples, batch_size: int) -> int:
    """Return how many batches one epoch has."""
    return -(-len(examples) // batch_size)
