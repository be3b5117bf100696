"""Held-out validation for any task: a share of each device's training examples."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, tensor

from partita.data.devices import Devices
from partita.data.examples import Batch, Examples, examples_of
from partita.data.splits import held_out_count
from partita.errors import CannotDo
from partita.protocol import DeviceId, derive_seed
from partita.tasks.task import Task


def hold_out_validation(task: Task, share: float) -> Task:
    """Return the task with `share` of each device's training examples as its validation examples.

    The choice depends only on the device's id and its number of examples. At least one example stays for
    training. A device that already has validation examples keeps its splits.
    """
    if not 0 < share < 1:
        raise ValueError(f"`validation` must be between 0 and 1, got {share!r}.")
    devices = task.devices

    def load(device: DeviceId) -> _WithValidation:
        return _WithValidation(device, devices[device], share)

    return task.with_devices(Devices(devices.ids, load, devices.largest, devices.size))


def without_validation(task: Task, devices: Iterable[DeviceId]) -> list[DeviceId]:
    """Return the devices that have no validation examples; those whose data cannot be loaded have none."""
    found: list[DeviceId] = []
    for device in devices:
        try:
            has_some = "validation" in task.devices[device]
        except CannotDo:
            has_some = False
        if not has_some:
            found.append(device)
    return found


@dataclass(frozen=True)
class _WithValidation(Mapping[str, Any]):
    """A device's splits, with its training examples divided in two."""

    device: DeviceId
    splits: Mapping[str, Any]
    share: float

    def __getitem__(self, name: str) -> Any:
        if name not in ("train", "validation") or "validation" in self.splits:
            return self.splits[name]
        examples = examples_of(self.splits["train"])
        order = list(range(len(examples)))
        random.Random(derive_seed(0, "validation", self.device)).shuffle(order)
        count = held_out_count(self.share, len(order))
        return _Subset(examples, sorted(order[:count] if name == "validation" else order[count:]))

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        yield from self.splits
        if "train" in self.splits and "validation" not in self.splits and len(self["validation"]):
            yield "validation"

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class _Subset:
    """A subset of the examples of a split."""

    examples: Examples
    positions: list[int]

    def __len__(self) -> int:
        return len(self.positions)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions` of the subset."""
        return self.examples.batch_at(tensor([self.positions[position] for position in positions.tolist()]))
