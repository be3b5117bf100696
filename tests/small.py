"""What many tests use: models whose arithmetic can be done by hand, and small tasks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from partita import Task


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


class Affine(nn.Module):
    """Predicts x . u + v: the slope is shared, the offset personal."""

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


class Normed(nn.Module):
    """A shared body and a personal head, each with a BatchNorm: buffers in both parts."""

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


def same_bits(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
