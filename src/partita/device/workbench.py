"""The models on which visits are carried out, each built once and reused by successive visits."""

from dataclasses import dataclass

import torch
from torch import nn

from partita.device.memory_format import use_channels_last
from partita.params import Params, cloned, copy_into
from partita.partition import Partition, Parts, Personalization
from partita.partition.common import digest_of_frozen
from partita.partition.tensors import scratch_of
from partita.partition.ties import move
from partita.protocol import Order
from partita.tasks.build import build_model
from partita.tasks.task import Task

_MAX_WORKBENCHES = 4
"""Models kept at a time: a run needs two, and more only where personal parts differ in size."""


@dataclass(frozen=True)
class Workbench:
    """A model that successive visits reuse: each visit loads again everything that a visit can change."""

    model: nn.Module
    personalization: Personalization
    scratch: Params
    """The buffers that are not in the model's state, as they were when it was built."""
    frozen: str
    """The digest of the frozen part."""

    @property
    def partition(self) -> Partition:
        """How the model is split."""
        return self.personalization.partition

    @property
    def parts(self) -> Parts:
        """The model's own tensors, looked up each time: a model may replace the tensor of a buffer."""
        return self.partition.of(self.model)

    def restore_scratch(self) -> None:
        """Give the buffers that are not in the model's state their first values, in place."""
        if self.scratch:
            copy_into(scratch_of(self.model), self.scratch)


class Workbenches:
    """The workbenches of one process, one for each kind of model, the least recently used dropped first.

    Args:
        task: data, model, loss and metrics.
        seed: the run's seed.
        accelerator: where the models are.
        arranges_images: whether models may compute images in another memory format on the CPU.
    """

    def __init__(
        self, task: Task, *, seed: int, accelerator: torch.device, arranges_images: bool = True
    ) -> None:
        self.task = task
        self.seed = seed
        self.accelerator = accelerator
        self.arranges_images = arranges_images
        self._kept: dict[int, Workbench] = {}
        self._pretrained: dict[str, Params] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Drop all models, in place: the code of a device that failed may have left any state in them."""
        self._kept.clear()

    def find(self, order: Order, own: Personalization, *, is_new: bool = False) -> Workbench:
        """Return the workbench of a device's model, built where it is not kept or must be a new one.

        Raises:
            ValueError: the frozen part of the model is not the server's.
        """
        if order.start.pretrained is not None:
            self._pretrained[order.start.frozen] = order.start.pretrained
        bench = self._kept.pop(id(own), None)
        if bench is None or is_new:
            bench = self._build(order, own)
            if len(self._kept) == _MAX_WORKBENCHES:
                del self._kept[next(iter(self._kept))]
        self._kept[id(own)] = bench
        if bench.frozen != order.start.frozen:
            raise ValueError(
                "The frozen part of this device's model differs from the server's: its digest is "
                f"{bench.frozen[:12]}, expected {order.start.frozen[:12]}."
            )
        return bench

    def _build(self, order: Order, own: Personalization) -> Workbench:
        model = build_model(self.task, own, seed=self.seed)
        parts, pretrained = own.partition.of(model), self._pretrained.get(order.start.frozen, {})
        copy_into({name: parts.frozen[name] for name in pretrained}, pretrained)
        frozen = digest_of_frozen(parts.frozen)
        if self.accelerator.type != "cpu":
            move(model, self.accelerator)
        elif self.arranges_images:
            use_channels_last(model)
        return Workbench(model, own, cloned(scratch_of(model)), frozen)
