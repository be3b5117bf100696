"""The costs of a partition for a device: parameters, traffic, disk and training memory.

Training memory follows the paper's formula, 3 size(u) + 2 size(v) plus what backpropagation keeps for one
example; the last is measured, by what autograd saves for the backward pass.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from partita.data.examples import Batch, Examples, examples_of
from partita.errors import CannotDo
from partita.methods.carried import kept_by, sent_by
from partita.methods.declared import LocalFn
from partita.params import change_in_bytes, size_in_bytes
from partita.partition import Part, Personalization
from partita.protocol import DeviceId, derive_seed
from partita.reuse.plan import Moving, Plan
from partita.reuse.settling import Settling
from partita.reuse.values import MIN_ROWS
from partita.reuse.visits import TRIED_DEVICES, probed_examples
from partita.sealed_tensors import part_pieces
from partita.tasks.build import build_model, one_thread, seeded
from partita.tasks.task import Task

Costs = Mapping[str, Any]
"""The costs of one partition, by name."""
_TRIED = 8
"""Examples in the largest batch on which a description tries what can be reused."""


@dataclass(frozen=True)
class CostModel:
    """Measures the costs of partitions of one model."""

    task: Task
    model: nn.Module
    """The plain model, before it is prepared for a partition."""
    seed: int
    examples: Examples | None
    """The training examples of the first device that has any, None where no device has."""
    is_placeholder: bool = False
    """Whether the examples have the right shapes alone."""

    def costs(self, personalization: Personalization, local: LocalFn) -> Costs:
        """Return the costs of a partition; where devices differ, the largest, and each size separately.

        Tensors that the update `local` declares are sent and kept too.
        """
        kinds = personalization.kinds(self.task.devices.ids)
        with same_gradients(self.model):
            # Traffic has the shapes of the whole shared part, also where a device has less of it.
            traffic = self._traffic(personalization, local)
            sizes = [
                self._costs_of_one(own, device, local, {"devices": count, **traffic})
                for own, device, count in kinds
            ]
        if len(sizes) == 1:
            return {name: value for name, value in sizes[0].items() if name != "devices"}
        largest = max(sizes, key=lambda costs: costs["personal"] + costs["shared"])
        return {
            **{name: value for name, value in largest.items() if name != "devices"},
            "disk_bytes": sum(costs["disk_bytes"] for costs in sizes),
            "sizes": sorted(sizes, key=lambda costs: costs["personal"] + costs["shared"]),
        }

    def _traffic(self, own: Personalization, local: LocalFn) -> dict[str, int]:
        """Return the bytes that one device receives and sends in a round."""
        shared = own.partition.of(self.prepare(own)).shared
        others = {name: each.tensor for name, each in sent_by(local, own.partition, shared).items()}
        sent = {**shared, **others}
        return {"up_bytes": change_in_bytes(sent), "down_bytes": size_in_bytes(sent)}

    def _costs_of_one(
        self, own: Personalization, device: DeviceId, local: LocalFn, known: Mapping[str, int]
    ) -> dict[str, Any]:
        """Return the costs of devices with one model: those that are known, and all others."""
        model = self.prepare(own)
        partition, parts = own.partition, own.partition.of(model)
        kept = {**parts.personal, **kept_by(local, partition, parts)}
        size = sum(map(len, part_pieces(kept, device=device, label=""))) if kept else 0
        costs = {
            **known,
            **{part: partition.count(part) for part in ("personal", "shared", "frozen")},
            **({"untied": partition.untied} if partition.untied else {}),
            "disk_bytes": known["devices"] * size,
        }
        shared, personal, frozen = map(size_in_bytes, (parts.shared, parts.personal, parts.frozen))
        try:
            saved = self.saved_bytes(own, model, self.batch(1), ("personal", "shared"))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return costs | {"backprop_bytes": None, "memory_bytes": None, "reason": reason}
        memory = 3 * shared + 2 * personal + frozen + saved
        return costs | {"backprop_bytes": saved, "memory_bytes": memory}

    def reuse(self, personalization: Personalization, batch_size: int) -> dict[str, Any]:
        """Return what is computed only once while each part moves alone, by part.

        `begins` is the module from which on everything is computed in every step, and `kept_bytes` the memory
        that an example takes; where nothing is reused, there is a `reason`. Where devices differ, it is that
        of the first.
        """
        own = personalization.on(self.task.devices.ids[0])
        found: dict[str, Any] = {}
        with same_gradients(self.model):
            for part in ("personal", "shared"):
                if own.partition.trained(part):
                    plan = self._checked_plan(own, frozenset({part}), batch_size)
                    kept = {"begins": plan.begins, "kept_bytes": plan.bytes_per_example}
                    found[part] = kept if plan.modules else {"reason": plan.reason}
        return found

    def plan(self, own: Personalization, moving: Moving, batch_size: int) -> Plan:
        """Return what visits compute only once while some parts move, as far as shapes say."""
        if batch_size < MIN_ROWS or self.examples is None:
            return Plan(reason=f"batches have fewer than {MIN_ROWS} examples")
        return self._settled(own, moving, self.examples, batch_size, is_outline=True)

    def _checked_plan(self, own: Personalization, moving: Moving, batch_size: int) -> Plan:
        """Return the plan, tried on some examples: visits refuse it where those of a batch interact."""
        if self.is_placeholder or batch_size < MIN_ROWS or self.examples is None:
            return self.plan(own, moving, batch_size)
        if (examples := probed_examples(self.task.devices.ids, self._train)) is None:
            few = f"more than {MIN_ROWS} training examples"
            return Plan(reason=f"none of the first {TRIED_DEVICES} devices has {few}")
        return self._settled(own, moving, examples, batch_size, tried=_TRIED)

    def _settled(
        self, own: Personalization, moving: Moving, examples: Examples, batch_size: int, **effort: Any
    ) -> Plan:
        model, loss = self.prepare(own), self.task.loss
        return Settling(model, own.partition, loss, examples, batch_size, self.seed, **effort).plan(moving)

    def _train(self, device: DeviceId) -> Examples:
        return examples_of(self.task.devices[device].get("train", ()))

    def prepare(self, own: Personalization) -> nn.Module:
        """Return the model as a partition needs it; it holds the tensors of the plain one."""
        with one_thread(), seeded(derive_seed(self.seed, "prepare")):
            return own.prepare(_copy_around_tensors(self.model))

    def batch(self, examples: int) -> Batch:
        """Return a batch of training examples of one device, repeated if it has fewer."""
        if self.examples is None:
            raise CannotDo("No device has a training example.")
        return self.examples.batch_at(torch.arange(examples) % len(self.examples))

    def saved_bytes(self, own: Personalization, model: nn.Module, batch: Batch, moves: Sequence[Part]) -> int:
        """Return the bytes that a step on some parts keeps for its backward pass, without the model's own."""
        return self.backward_bytes(own, model, batch, moves)[0]

    def backward_bytes(
        self, own: Personalization, model: nn.Module, batch: Batch, moves: Sequence[Part]
    ) -> tuple[int, int]:
        """Return the bytes that a step on some parts keeps for its backward pass, and those to add gradients.

        The second are for a tensor that has several gradients, such as a tied one, or one of the loss and one
        of a penalty: two of them exist beside their sum. The largest such tensor counts.
        """
        own.partition.let_move(model, *moves)
        tensors = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
        saved: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            if _address(tensor) not in tensors:
                saved[_address(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        with one_thread(), seeded(derive_seed(self.seed, "describe")), saved_tensors_hooks(save, lambda t: t):
            loss = self.task.loss(model, batch)
            if own.penalty is not None:
                loss = loss + own.penalty(model)
        added = 2 * max((tensor.nbytes for tensor in _with_several_gradients(loss)), default=0)
        # The loss keeps the saved tensors alive up to here, so no two of them had one address.
        del loss
        return sum(saved.values()), added


def _with_several_gradients(loss: Tensor) -> Iterator[Tensor]:
    """Yield the tensors to which more than one path of the backward pass leads."""
    left: list[Any] = [loss.grad_fn]
    seen = {None, *left}
    while left:
        node = left.pop()
        for child, _ in node.next_functions if node else ():
            if child not in seen:
                seen.add(child)
                left.append(child)
            elif (variable := getattr(child, "variable", None)) is not None:  # The end of a path.
                yield variable


def cost_model_of(task: Task, *, seed: int, is_placeholder: bool = False) -> CostModel:
    """Return what measures the costs of partitions of a task's model, whose data may be a placeholder."""
    return CostModel(task, build_model(task, seed=seed), seed, _first_examples(task), is_placeholder)


def _first_examples(task: Task) -> Examples | None:
    """Return the training examples of the first device that has any."""
    for device in task.devices.ids:
        try:
            examples = examples_of(task.devices[device].get("train", ()))
            if len(examples):
                examples.batch_at(torch.arange(1))
                return examples
        except Exception:  # A visit of this device will raise it again, or count it as a failure.
            continue
    return None


def _copy_around_tensors(model: nn.Module) -> nn.Module:
    """Return a copy of a model's modules that holds the same tensors: nothing large is copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


@contextmanager
def same_gradients(model: nn.Module) -> Iterator[None]:
    """Let the same parameters of a model take a gradient after this block as before it."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    finally:
        for parameter, takes_gradient in before.items():
            parameter.requires_grad_(takes_gradient)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
