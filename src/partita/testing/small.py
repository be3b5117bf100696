"""A small task with everything that a method may ask for: classes, a head, normalization and adapters."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from partita.models.adapters import Adapters
from partita.tasks.metrics import accuracy
from partita.tasks.task import Task

Splits = dict[str, tuple[Tensor, Tensor]]
_CLASSES, _FEATURES = 3, 4


class SmallNet(nn.Module):
    """A hidden layer with a normalization, and a linear head."""

    parts: ClassVar[Mapping[str, str | Adapters]] = {
        "input": "body.*",
        "output": "head.*",
        "head": "head.*",
        "adapter": Adapters(after="body"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(_FEATURES, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, _CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of each class."""
        return self.head(torch.tanh(self.norm(self.body(inputs))))


def small_devices(count: int = 8, *, noise: Mapping[str, float] | None = None) -> dict[str, Splits]:
    """Return devices with 8, 9, 10, ... training examples, whose classes lie elsewhere on each device.

    Args:
        count: the number of devices.
        noise: a value that is added to the training inputs of some devices.
    """
    generator = torch.Generator().manual_seed(11)
    centers = torch.randn(_CLASSES, _FEATURES, generator=generator)
    devices: dict[str, Splits] = {}
    for number in range(count):
        device, size = f"d{number}", {"train": 8 + number, "validation": 4, "test": 6}
        shift = 0.5 * torch.randn(_FEATURES, generator=generator)
        devices[device] = {}
        for split, examples in size.items():
            labels = torch.randint(_CLASSES, (examples,), generator=generator)
            inputs = centers[labels] + shift + 0.3 * torch.randn(examples, _FEATURES, generator=generator)
            added = (noise or {}).get(device, 0.0) if split == "train" else 0.0
            devices[device][split] = inputs + added, labels
    return devices


def small_task(devices: Mapping[str, Splits] | None = None) -> Task:
    """Return the task, by default with the devices of `small_devices`."""
    return Task(
        model=SmallNet,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        metrics={"accuracy": accuracy},
        devices=devices or small_devices(),
    )
