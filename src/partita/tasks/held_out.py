"""Validation examples for any task: a share of each device's training examples, held out from training."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, tensor

from partita.data.devices import Devices
from partita.data.examples import Batch, Examples, examples_of
from partita.protocol import DeviceId, derive_seed
from partita.tasks.task import Task


def held_out(task: Task, share: float) -> Task:
    """Return the task with `share` of each device's training examples as its validation examples.

    Which ones depends on the device's id and their number alone. At least one stays for training.
    """
    if not 0 < share < 1:
        raise ValueError(f"`validation` must be between 0 and 1, got {share!r}.")
    devices = task.devices
    return task.with_devices(Devices(devices.ids, lambda device: _Splits(device, devices[device], share)))


@dataclass(frozen=True)
class _Splits(Mapping[str, Any]):
    """A device's splits, with its training examples in two."""

    device: DeviceId
    splits: Mapping[str, Any]
    share: float

    def __getitem__(self, name: str) -> Any:
        if name not in ("train", "validation") or "validation" in self.splits:
            return self.splits[name]
        examples = examples_of(self.splits["train"])
        order = list(range(len(examples)))
        random.Random(derive_seed(0, "validation", self.device)).shuffle(order)
        held = min(round(self.share * len(order)), max(0, len(order) - 1))
        return _Some(examples, sorted(order[:held] if name == "validation" else order[held:]))

    def __iter__(self) -> Iterator[str]:
        yield from self.splits
        if "train" in self.splits and "validation" not in self.splits:
            yield "validation"

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True)
class _Some:
    """Some of the examples of a split."""

    examples: Examples
    positions: list[int]

    def __len__(self) -> int:
        return len(self.positions)

    def batch_at(self, positions: Tensor) -> Batch:
        """Return the examples at `positions` among these."""
        return self.examples.batch_at(tensor([self.positions[place] for place in positions.tolist()]))
