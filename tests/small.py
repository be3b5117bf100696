"""What many tests use: models whose arithmetic can be done by hand, and small tasks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from partita import Adapters, NextWordTransformer, Task, accuracy
from partita.config.building import Built, build
from partita.config.reading import config_of


class Sum(nn.Module):
    """Predicts u + v, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.tensor(0.0))
        self.v = nn.Parameter(torch.tensor(0.0))

    def forward(self) -> Tensor:
        return self.u + self.v


def half_square_error(model: nn.Module, target: Tensor) -> Tensor:
    return 0.5 * (model() - target).square().mean()


class Both(nn.Module):
    """Predicts u + v for every example, from u = 0 and v = 1."""

    parts: ClassVar[Mapping[str, str]] = {"output": "v", "head": "v"}

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.tensor([0.0]))
        self.v = nn.Parameter(torch.tensor([1.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.u + self.v).expand(len(inputs))


class Point(nn.Module):
    """Predicts w for every example, from w = 0: the loss of a device whose targets are a is (w - a)^2 / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.w.expand(len(inputs))


class Affine(nn.Module):
    """Predicts x . u + v: the slope is shared, the offset personal."""

    parts: ClassVar[Mapping[str, str]] = {"output": "offset", "head": "offset"}

    def __init__(self, features: int = 3) -> None:
        super().__init__()
        self.slope = nn.Linear(features, 1, bias=False)
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.slope(inputs).squeeze(1) + self.offset


def square_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return 0.5 * (model(inputs) - targets).square().mean()


def negative_error(predictions: Tensor, targets: Tensor) -> float:
    return -(predictions - targets).abs().mean().item()


def affine_devices(count: int = 6, *, features: int = 3) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Devices with 5, 6, 7, ... training examples of a common slope and an offset of their own."""
    generator = torch.Generator().manual_seed(7)
    slope = torch.randn(features, generator=generator)
    devices = {}
    for number in range(count):
        inputs = torch.randn(9 + number, features, generator=generator)
        noise = 0.1 * torch.randn(9 + number, generator=generator)
        targets = inputs @ slope + number - count / 2 + noise
        train, test = slice(0, 5 + number), slice(5 + number, None)
        devices[f"d{number}"] = {
            "train": (inputs[train], targets[train]),
            "test": (inputs[test], targets[test]),
        }
    return devices


def affine_task(**changes: Any) -> Task:
    settings = {
        "model": Affine,
        "loss": square_error,
        "metrics": {"closeness": negative_error},
        "devices": affine_devices(),
    }
    return Task(**(settings | changes))


def passing_devices() -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Devices whose validation targets lie half way to those of training: training passes them by."""
    devices = affine_devices()
    for splits in devices.values():
        inputs, targets = splits["test"]
        splits["validation"] = inputs, 0.5 * targets
    return devices


def passing_task(**changes: Any) -> Task:
    return affine_task(**({"devices": passing_devices()} | changes))


def float64_task(**shifts: float) -> Task:
    """The affine task in float64, some devices with a shift of their training targets."""
    devices = {
        device: {split: tuple(field.double() for field in fields) for split, fields in splits.items()}
        for device, splits in affine_devices().items()
    }
    for device, shift in shifts.items():
        inputs, targets = devices[device]["train"]
        devices[device]["train"] = inputs, targets + shift
    return affine_task(model=lambda: Affine().double(), devices=devices)


class Normed(nn.Module):
    """A shared body and a personal head, each with a BatchNorm: buffers in both parts."""

    parts: ClassVar[Mapping[str, str]] = {"output": "head.*", "head": "head.*"}

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs)).squeeze(1)


def normed_task() -> Task:
    """A task with BatchNorm, whose devices leave no batch of one example in batches of three."""
    devices = affine_devices()
    return affine_task(model=Normed, devices={device: devices[device] for device in ("d0", "d1", "d3", "d4")})


def point_task(
    targets: Mapping[str, float] | None = None, *, model: Callable[[], nn.Module] = Both, examples: int = 2
) -> Task:
    """Devices each with one target, the same for all of its 2, 3, 4, ... examples."""
    devices = {}
    for number, (device, target) in enumerate((targets or {"d0": 3.0}).items()):
        split = torch.zeros(examples + number, 1), torch.full((examples + number,), target)
        devices[device] = {"train": split, "validation": split, "test": split}
    return affine_task(model=model, devices=devices)


def word_task() -> Task:
    """Next-word prediction over 12 words, by a transformer whose output layer is tied to its embedding."""

    def split(seed: int, count: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(12, (count, 6), generator=torch.Generator().manual_seed(seed))
        return words[:, :-1], words[:, 1:]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def accuracy(predictions: Tensor, targets: Tensor) -> float:
        return (predictions.argmax(-1) == targets).double().mean().item()

    sizes = {"vocabulary_size": 12, "max_length": 5, "dim": 8, "layers": 2, "heads": 2, "hidden": 16}
    devices = {f"d{n}": {"train": split(n, 6), "test": split(9 + n, 3)} for n in range(3)}
    return Task(
        model=lambda: NextWordTransformer(**sizes), loss=loss, metrics={"accuracy": accuracy}, devices=devices
    )


class Classifier(nn.Module):
    """Scores of three classes, from a body of four hidden units and a linear head."""

    parts: ClassVar[Mapping[str, str | Adapters]] = {
        "output": "head.*",
        "head": "head.*",
        "adapter": Adapters(after="body"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(inputs)))


def class_devices(count: int = 4) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """Devices with 10, 11, 12, ... training examples of three classes, few of one of them."""
    generator = torch.Generator().manual_seed(3)
    centers = torch.randn(3, 3, generator=generator)
    devices = {}
    for number in range(count):
        labels = (torch.rand(16 + number, generator=generator) * 2.6).long() + number
        labels = labels % 3
        inputs = centers[labels] + 0.7 * torch.randn(16 + number, 3, generator=generator)
        train, test = slice(0, 10 + number), slice(10 + number, None)
        devices[f"d{number}"] = {
            "train": (inputs[train], labels[train]),
            "test": (inputs[test], labels[test]),
        }
    return devices


def class_task(**changes: Any) -> Task:
    """Classification of three classes whose shares differ by device."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    settings = {
        "model": Classifier,
        "loss": loss,
        "metrics": {"accuracy": accuracy},
        "devices": class_devices(),
    }
    return Task(**(settings | changes))


def task_of(method: str) -> str:
    """The small task with normalization, or one of classes and adapters for a method that needs those."""
    return f"small:{'class' if method in ('fedrod', 'knn_per', 'hetlora') else 'normed'}_task"


def built(method: str, task: str = "small:affine_task", **sections: Mapping[str, Any]) -> Built:
    """A method by its name on a small task, two rounds of two devices a stage, and changes by section."""
    rounds = {"rounds": 2, "devices_per_round": 2, "batch_size": 3}
    values = {
        "name": "test",
        "task": {"kind": task},
        "pretrain": rounds,
        "personalize": {"method": method, **rounds},
        "finetune": {"epochs": 2, "batch_size": 3},
    }
    for section, changes in sections.items():
        values[section] = {**values.get(section, {}), **changes}
    return build(config_of(values), Path())


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
