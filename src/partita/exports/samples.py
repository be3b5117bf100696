"""The inputs of a model on one device's rows, and whether another model gives the same outputs for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch, Examples, examples_of, in_order
from partita.errors import CannotDo
from partita.protocol import DeviceId
from partita.tasks.build import one_thread, seeded
from partita.tasks.leaves import NotPlain, have_same_bits, leaves_of
from partita.tasks.task import Task

_BATCH_SIZE = 256
"""The batch size of an evaluation."""
_SIZES = (2, 3, 4)
"""Batch sizes of samples: a size that differs between them is no fixed one. One example may be special."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, in order."""
        return [leaf for leaf in leaves_of([self.args, dict(self.kwargs)]) if isinstance(leaf, Tensor)]


def rows_for_checks(task: Task, device: DeviceId) -> Examples:
    """Return the device's test examples; where it has none, others of it.

    Raises:
        CannotDo: the device has no examples.
    """
    return _splits_of(task, device)[0]


def _splits_of(task: Task, device: DeviceId) -> list[Examples]:
    """Return the examples of each split of a device that has any, test examples first."""
    splits = task.devices[device]
    every = [examples_of(splits[name]) for name in ("test", "train", "validation") if name in splits]
    if found := [examples for examples in every if len(examples)]:
        return found
    raise CannotDo(f"Device {device!r} has no examples to try its model on.")


def sample_inputs(
    task: Task, model: nn.Module, device: DeviceId, sizes: Sequence[int] = _SIZES
) -> list[Inputs]:
    """Return the arguments of the model for a few small batches of a device, of different sizes.

    They come from all splits, so that a size which can differ between rows does.
    """
    found: list[Inputs] = []
    splits = _splits_of(task, device)
    for number, size in enumerate(sizes):
        examples = splits[number % len(splits)]
        positions = (torch.arange(size) + number * size) % len(examples)
        found += _inputs_of(task, model, examples.batch_at(positions))[:1]
    return found


def all_inputs(
    task: Task, model: nn.Module, examples: Examples, batch_size: int = _BATCH_SIZE
) -> Iterator[Inputs]:
    """Yield the arguments of the model for all examples, by default as in an evaluation."""
    for batch, _ in in_order(examples, batch_size):
        yield from _inputs_of(task, model, batch)


def _inputs_of(task: Task, model: nn.Module, batch: Batch) -> list[Inputs]:
    """Return the arguments of every call of the model for a batch.

    Raises:
        CannotDo: there is no call, or an argument is no tensor, number or text.
    """
    calls: list[Inputs] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(Inputs(args, kwargs))

    with model.register_forward_pre_hook(note, with_kwargs=True), torch.no_grad(), one_thread(), seeded(0):
        task.predict(model, batch)
    if not calls:
        raise CannotDo("The task's `predict` does not call the model, but some of its methods.")
    try:
        for call in calls:
            list(call.tensors)
    except NotPlain:
        raise CannotDo("An argument of the model is no tensor, number, text or container of them.") from None
    return calls


def output_of(model: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    """Return all tensors in the output of a model, in order; random numbers are the same every time."""
    with torch.no_grad(), one_thread(), seeded(0):
        output = model(*inputs.args, **inputs.kwargs)
    return [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]


def largest_difference(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the largest difference between two outputs, as a share of the largest value; 0 for equal bits.

    It is infinite where numbers, shapes or values that are not finite differ.

    >>> largest_difference([torch.tensor([2.0, 4.0])], [torch.tensor([2.0, 4.5])])
    0.125
    """
    if have_same_bits(some, others):
        return 0.0
    if [one.shape for one in some] != [other.shape for other in others]:
        return float("inf")
    worst = 0.0
    for one, other in zip(_as_numbers(some), _as_numbers(others), strict=True):
        known = one.isfinite()
        if not torch.equal(known, other.isfinite()) or not _are_equal(one[~known], other[~known]):
            return float("inf")
        if known.any():
            scale = max(one[known].abs().max().item(), 1e-6)
            worst = max(worst, (one - other)[known].abs().max().item() / scale)
    return worst


def _as_numbers(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.double() for tensor in tensors]


def _are_equal(some: Tensor, others: Tensor) -> bool:
    """Return whether values that are not finite are the same ones."""
    return torch.allclose(some, others, equal_nan=True)


def varying_sizes(samples: Sequence[Inputs]) -> list[list[bool]]:
    """Return, for every tensor among the arguments and each of its dimensions, whether its size differs."""
    shapes = [[tensor.shape for tensor in sample.tensors] for sample in samples]
    return [
        [len({shape[place] for shape in own}) > 1 for place in range(len(own[0]))]
        for own in zip(*shapes, strict=True)
    ]


def shapes_of_inputs(samples: Sequence[Inputs]) -> list[dict[str, Any]]:
    """Return the shape and type of every tensor among the arguments; None is a size that varies."""
    varying = varying_sizes(samples)
    return [
        {
            "shape": [None if differs else size for size, differs in zip(tensor.shape, own, strict=True)],
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        for tensor, own in zip(samples[0].tensors, varying, strict=True)
    ]
