"""What each partition of a config's model costs: parameters, traffic, disk and training memory.

Training memory is the paper's formula, 3 size(u) + 2 size(v) and what backpropagation keeps for one example;
the last is measured, by what autograd saves for the backward pass.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from partita.config.building import build_partition
from partita.config.imports import METHODS, find_code, load, own_code
from partita.config.schema import Config
from partita.config.stand_ins import with_stand_ins
from partita.config.tasks import build_task
from partita.data.examples import Batch, examples_of, in_order
from partita.errors import CannotDo, ConfigError
from partita.methods.carried import LocalFn, declared_by
from partita.methods.fedavg import LocalSGD
from partita.models.parts import partition_names
from partita.models.start import LoadReport
from partita.params import change_in_bytes, size_in_bytes, to_bytes
from partita.partition import Partition
from partita.protocol import DeviceId, derive_seed
from partita.tasks.build import build_model, one_thread, seeded
from partita.tasks.task import Task

Costs = Mapping[str, Any]
"""The numbers of one partition, by name."""


@dataclass(frozen=True)
class Description:
    """What a config's model is, and what each way to split it costs."""

    model: str
    """The name of its class."""
    devices: int
    """How many devices there are."""
    start: LoadReport | None
    """What became of the file to begin from, where there is one."""
    partitions: Mapping[str, Costs]
    """Of every named partition and the config's own; an `error` where one cannot be made of this model."""
    notes: Sequence[str] = ()
    """What is not there, and what stands for it."""

    def to_values(self) -> dict[str, Any]:
        """Return all of it as values that JSON has."""
        return asdict(self)


def describe(config: Config, beside: Path) -> Description:
    """Return what every named partition and the config's own cost; nothing is trained.

    Data and weights that are not there yet change none of it: a made-up example stands for the data.
    """
    find_code(config, beside)
    with TemporaryDirectory() as folder:
        config, notes = with_stand_ins(config, beside, Path(folder))
        return _describe(config, beside, notes)


def _describe(config: Config, beside: Path, notes: Sequence[str]) -> Description:
    task, start = build_task(config, beside)
    with own_code("The model"):
        model = build_model(task, seed=config.seed)
    with own_code("The task"):
        scale = _Scale(task, model, config.seed, _first_example(task))
    own = build_partition(config.partition, model)
    trained = config.personalize.method if config.personalize.rounds else "fedavg"
    local = load("personalize.method", trained, METHODS)
    chosen = config.partition.personal
    partitions = {
        name: scale.costs(own, local) if name == chosen else _named(config, name, scale)
        for name in partition_names(model)
    }
    if chosen not in partition_names(model):
        partitions[chosen if isinstance(chosen, str) else ", ".join(chosen) or "[]"] = scale.costs(own, local)
    return Description(type(model).__name__, len(task.devices), start, partitions, notes)


def _named(config: Config, name: str, scale: "_Scale") -> Costs:
    """Return the costs of a named partition, with the other settings that the config has for its own."""
    settings = replace(config.partition, personal=name)
    if config.partition.personal == "rest":
        settings = replace(settings, shared="rest")
    if name == "full":
        settings = replace(settings, shared="rest", frozen=[])
    try:
        return scale.costs(build_partition(settings, scale.model))
    except ConfigError as error:
        return {"error": str(error)}


def _first_example(task: Task) -> Batch | None:
    """Return a batch of one training example, of the first device that has one."""
    for device in task.devices.ids:
        try:
            examples = examples_of(task.devices[device].get("train", ()))
            if len(examples):
                return next(in_order(examples, 1))[0]
        except CannotDo:
            continue
    return None


@dataclass(frozen=True)
class _Scale:
    """What partitions of one model are weighed with."""

    task: Task
    model: nn.Module
    seed: int
    example: Batch | None

    def costs(self, partition: Partition, local: LocalFn = LocalSGD) -> Costs:
        """Return the costs of a partition; where devices differ, the most of any, and each size apart.

        What the update `local` declares besides the model is sent and kept too.
        """
        with own_code("`partition.adapter_width`"):
            kinds = partition.kinds(self.task.devices.ids)
        with own_code("`personalize.method`"):
            sizes = [self._costs_of_one(own, device, count, local) for own, device, count in kinds]
        if len(sizes) == 1:
            return {name: value for name, value in sizes[0].items() if name != "devices"}
        largest = max(sizes, key=lambda costs: costs["personal"])
        return {
            **{name: value for name, value in largest.items() if name != "devices"},
            "disk_bytes": sum(costs["disk_bytes"] for costs in sizes),
            "sizes": sorted(sizes, key=lambda costs: costs["personal"]),
        }

    def _costs_of_one(
        self, partition: Partition, device: DeviceId, devices: int, local: LocalFn
    ) -> dict[str, Any]:
        with one_thread(), seeded(derive_seed(self.seed, "prepare")):
            model = partition.prepare(_around_the_same_tensors(self.model))
        parts = partition.of(model)
        carried = declared_by(local, partition, parts.shared)
        sent, kept = {**parts.shared, **carried.sent}, {**parts.personal, **carried.kept}
        costs = {
            "devices": devices,
            **{part: partition.count(part) for part in ("personal", "shared", "frozen")},
            "up_bytes": change_in_bytes(sent),
            "down_bytes": size_in_bytes(sent),
            "disk_bytes": devices * len(to_bytes(kept, device=device)) if kept else 0,
        }
        held = (
            3 * size_in_bytes(parts.shared) + 2 * size_in_bytes(parts.personal) + size_in_bytes(parts.frozen)
        )
        try:
            saved = self._saved_bytes(partition, model)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return costs | {"backprop_bytes": None, "memory_bytes": None, "reason": reason}
        return costs | {"backprop_bytes": saved, "memory_bytes": held + saved}

    def _saved_bytes(self, partition: Partition, model: nn.Module) -> int:
        """Return how many bytes a step that moves both parts keeps for its backward pass, the model apart."""
        if self.example is None:
            raise CannotDo("No device has a training example.")
        partition.let_move(model, "personal", "shared")
        own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
        saved: dict[int, int] = {}

        def save(tensor: Tensor) -> Tensor:
            if _address(tensor) not in own:
                saved[_address(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        with one_thread(), seeded(derive_seed(self.seed, "describe")), saved_tensors_hooks(save, lambda t: t):
            loss = self.task.loss(model, self.example)
            if partition.penalty is not None:
                loss = loss + partition.penalty(model)
        # The loss is alive up to here, and what was saved for it: no two tensors had one address.
        del loss
        return sum(saved.values())


def _around_the_same_tensors(model: nn.Module) -> nn.Module:
    """Return a copy of a model's modules that holds its own tensors: nothing large is copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
