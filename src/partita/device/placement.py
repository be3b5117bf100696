"""Where the tensors of a visit are: its model, batches and state on an accelerator, its results on the CPU.

On the CPU nothing is moved, and nothing is looked at in a step.
"""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from partita.data.examples import Batch, Examples, NamedExamples, TensorExamples, examples_of
from partita.data.moving import CPU, moved
from partita.device.settings import Precision
from partita.params import Params
from partita.protocol import DeviceId
from partita.tasks.task import Task

_FREE = 0.5
"""The share of an accelerator's memory that kept examples leave free."""


@dataclass(frozen=True)
class OnAccelerator:
    """Examples whose batches are on an accelerator."""

    examples: Examples
    accelerator: torch.device
    is_kept: bool
    """Whether all examples are on the accelerator; otherwise each batch is moved there."""

    def __len__(self) -> int:
        return len(self.examples)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions`, which are on the CPU, as one batch on the accelerator."""
        if self.is_kept:
            return self.examples.batch_at(positions.to(self.accelerator))
        return moved(self.examples.batch_at(positions), self.accelerator)


@dataclass(frozen=True)
class _Kept:
    """A split of a device on an accelerator."""

    sources: tuple[weakref.ref[Any], ...]
    """The tensors or arrays that were moved, which tell whether the device's data is still the same."""
    examples: OnAccelerator
    size: int
    """Its size in bytes."""


class Placement:
    """Moves what a visit needs to an accelerator, and what it returns to the CPU.

    Args:
        accelerator: where visits compute.
    """

    def __init__(self, accelerator: torch.device) -> None:
        self.accelerator = accelerator
        self._is_cpu = accelerator.type == "cpu"
        self._kept: OrderedDict[tuple[DeviceId, str], _Kept] = OrderedDict()

    def to(self, params: Params) -> Params:
        """Return tensors on the accelerator."""
        return params if self._is_cpu else moved(params, self.accelerator)

    def back(self, params: Params) -> Params:
        """Return tensors on the CPU."""
        return params if self._is_cpu else moved(params, CPU)

    def examples(self, device: DeviceId, name: str, split: Any) -> Examples:
        """Return the examples of a split, with batches on the accelerator.

        Splits of tensors are kept there, the least recently used of them only as long as half of its memory
        is free. Of all others each batch is moved. The batches are the same.
        """
        if self._is_cpu:
            return examples_of(split)
        examples = examples_of(split)
        fields = _fields(examples)
        sources = _sources(split, fields)
        kept = self._kept.pop((device, name), None)
        if kept is not None and _is_same(kept.sources, sources):
            self._kept[device, name] = kept
            return kept.examples
        size = sum(field.nbytes for field in fields)
        if not fields or not self._makes_room(size):
            return OnAccelerator(examples, self.accelerator, is_kept=False)
        there = OnAccelerator(moved(examples, self.accelerator), self.accelerator, is_kept=True)
        self._kept[device, name] = _Kept(tuple(map(weakref.ref, sources)), there, size)
        return there

    def _makes_room(self, size: int) -> bool:
        """Drop kept splits, in place, until one of a size fits; return whether it fits at all."""
        free, total = memory_of(self.accelerator)
        room = free - _FREE * total
        if room + sum(kept.size for kept in self._kept.values()) < size:
            return False
        while room < size:
            room += self._kept.popitem(last=False)[1].size
        return True


def in_precision(task: Task, precision: Precision, accelerator: torch.device) -> Task:
    """Return a task whose loss and predictions are computed in a precision, from parameters in float32.

    Predictions are float32 again, so that metrics need not know of bfloat16. Gradients are computed outside
    of autocast, as torch recommends; each has the type of its parameter.
    """
    if precision == "float32":
        return task

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(accelerator.type, torch.bfloat16):
            return task.loss(model, batch)

    def predict(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
        with torch.autocast(accelerator.type, torch.bfloat16):
            predicted, targets = task.predict(model, batch)
        return _full(predicted), targets

    own = copy.copy(task)
    own.loss, own.predict = loss, predict
    return own


def memory_of(accelerator: torch.device) -> tuple[int, int]:
    """Return the free and the total memory of an accelerator in bytes."""
    if accelerator.type == "mps":
        total = torch.mps.recommended_max_memory()
        return total - torch.mps.current_allocated_memory(), total
    free, total = torch.cuda.mem_get_info(accelerator)
    # torch holds on to memory that it has freed, and uses it again.
    unused = torch.cuda.memory_reserved(accelerator) - torch.cuda.memory_allocated(accelerator)
    return free + unused, total


def _fields(examples: Examples) -> tuple[Tensor, ...]:
    """Return the tensors of examples that consist of them, nothing for those of another kind."""
    match examples:
        case TensorExamples():
            return examples.tensors
        case NamedExamples():
            return tuple(examples.fields.values())
        case _:
            return ()


def _sources(split: Any, fields: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Return the objects by which a split is known: its own fields, which may be arrays."""
    given = tuple(split.values()) if isinstance(split, Mapping) else split
    return given if isinstance(given, tuple) and fields else fields


def _is_same(references: tuple[weakref.ref[Any], ...], sources: tuple[Any, ...]) -> bool:
    if len(references) != len(sources):
        return False
    return all(reference() is source for reference, source in zip(references, sources, strict=True))


def _full(predicted: Any) -> Any:
    """Return predictions in float32 where they are in bfloat16."""
    if isinstance(predicted, Tensor):
        return predicted.float() if predicted.dtype == torch.bfloat16 else predicted
    if isinstance(predicted, list | tuple):
        return [_full(item) for item in predicted]
    return predicted
