"""The models of a finished run: every device's own, the global one, and the one that a device is served."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from partita.data.arrow import Table, rows_among
from partita.data.examples import examples_of
from partita.methods.declared import LocalFn, OwnExamples, declared
from partita.methods.own_model import begin, predictor
from partita.models.full import Full
from partita.params import Params, cloned, copy_into
from partita.partition import Personalization
from partita.partition.padding import narrowed
from partita.protocol import DeviceId, Stage
from partita.tasks.build import build_model
from partita.tasks.task import Task
from partita.training.evaluation import Summary, is_failed
from partita.training.journal import RoundRow

Which = Literal["personal", "global", "served"]
"""A device's own model, the pretrained one, or the one of the two that the device is served."""

_NEAR = 10_000
"""Ids among which similar ones are looked for."""


class Record(Protocol):
    """The readable record of a finished run: its folder, or its journal in memory."""

    @property
    def summary(self) -> Summary:
        """Statistics of each stage."""
        ...

    @property
    def measurements(self) -> Table:
        """The table of measurements."""
        ...

    def rounds(self) -> Iterator[RoundRow]:
        """Yield the lines of all rounds but those of unseen devices."""
        ...

    def shared(self, name: str) -> dict[str, Tensor]:
        """Return tensors that belong to no device."""
        ...

    def kept(self, device: DeviceId) -> dict[str, Tensor] | None:
        """Return all tensors that a device keeps, None where there are none."""
        ...

    @property
    def joined(self) -> Mapping[DeviceId, Any]:
        """The devices that have joined the run since, by id."""
        ...

    @property
    def served(self) -> Mapping[DeviceId, Literal["global", "personal"]]:
        """The model that each evaluated device is served."""
        ...


@dataclass(frozen=True)
class Origin:
    """The task and the settings that a run was made from: what its models are built from again."""

    task: Task
    personalization: Personalization
    seed: int
    local: LocalFn | None = None
    """The update of personalization, which may declare how a device's own model begins and predicts."""


class Models:
    """The models of a finished run, each built when it is asked for.

    Args:
        record: the run's folder, or its journal in memory.
        origin: returns the task and the settings of the run; called once, when a model is first asked for.
    """

    def __init__(self, record: Record, origin: Callable[[], Origin]) -> None:
        self.record = record
        self._make_origin = origin

    @cached_property
    def origin(self) -> Origin:
        """The task and the settings of the run."""
        with _gradients():
            return self._make_origin()

    @cached_property
    def shared(self) -> dict[str, Tensor]:
        """The shared part u after training."""
        return self.record.shared(Stage.PERSONALIZED)

    @cached_property
    def _pretrained(self) -> dict[str, Tensor]:
        return self.record.shared(Stage.PRETRAINED)

    def personal(self, device: DeviceId) -> dict[str, Tensor]:
        """Return v_i, the personal part of a device; its start where the device was never counted."""
        return self._personal(device, self.record.kept(device) or {})

    def _personal(self, device: DeviceId, kept: Params) -> dict[str, Tensor]:
        own = self.personalization(device)
        if found := own.partition.personal_in(kept):
            return found
        if own.start is not None:
            return cloned(own.start(self.shared))
        return cloned(own.partition.of(self._build(own, self._pretrained)).personal)

    def model(self, device: DeviceId, which: Literal["personal", "global"]) -> nn.Module:
        """Return a device's whole model, in eval mode: its own, or the pretrained (`global`) one."""
        own = self.personalization(device)
        if which == "global":
            return self._build(None, self._pretrained).eval()
        kept, model = self.record.kept(device) or {}, self._build(own, self._pretrained)
        parts = own.partition.of(model)
        shared = {name: narrowed(self.shared[name], tensor.shape) for name, tensor in parts.shared.items()}
        copy_into(parts.shared, shared)
        copy_into(parts.personal, self._personal(device, kept))
        if self._begins(device):
            begin(self.origin.local, model, own.partition, kept)
        return (model.personal if isinstance(model, Full) else model).eval()

    def _begins(self, device: DeviceId) -> bool:
        """Return whether a device's own model still has to begin as declared, which fine-tuning does too."""
        local = self.origin.local
        return local is not None and declared(local, "begins") is not None and device not in self._finetuned

    @cached_property
    def _finetuned(self) -> frozenset[DeviceId]:
        """The devices that were fine-tuned, also those that the run has not seen in training."""
        lines = (line for line in self.record.rounds() if line["work"] == "finetune")
        heard = [device for line in lines for device in line["heard"]]
        rows = rows_among(self.record.measurements, "stage", [Stage.FINETUNED])
        return frozenset([*heard, *(row["device"] for row in rows.to_pylist() if not is_failed(row))])

    def predictor(
        self, device: DeviceId, which: Literal["personal", "global"], task_of: Callable[[DeviceId], Task]
    ) -> nn.Module:
        """Return the module that predicts for a device, in eval mode.

        It is the device's model, unless its method declares another one in `predicts`.

        Args:
            device: the device.
            which: its own model, or the pretrained (`global`) one.
            task_of: returns the task that has the rows of a device; called where the method needs them.
        """
        local = self.origin.local if which == "personal" else None

        def own_examples() -> OwnExamples:
            with _gradients():
                task = task_of(device)
            train = examples_of(task.devices[device].get("train", ()))
            return OwnExamples(train, batch_size=1, predict=task.predict)

        return predictor(local, self.model(device, which), own_examples).eval()

    def personalization(self, device: DeviceId) -> Personalization:
        """Return how a device's model is split.

        Raises:
            ValueError: the run has no such device.
        """
        if device not in self.origin.task.devices and device not in self.record.joined:
            near = f" Near ids: {found}." if (found := self.near(device)) else ""
            raise ValueError(f"There is no device {device!r}.{near}")
        return self.origin.personalization.on(device)

    def near(self, device: DeviceId) -> str:
        """Return the ids of devices that are similar to one, separated by commas."""
        ids = [*self.origin.task.devices.ids[:_NEAR], *islice(self.record.joined, _NEAR)]
        return ", ".join(difflib.get_close_matches(device, ids, n=3))

    def _build(self, own: Personalization | None, state: Params | None = None) -> nn.Module:
        with _gradients():
            return build_model(self.origin.task, own, seed=self.origin.seed, state=state)


@contextmanager
def _gradients() -> Iterator[None]:
    """Record gradients, also where `torch.inference_mode()` is on: a task is checked with them."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
