"""Convolutional networks with batches in channels-last memory format, against the usual one.

    python benchmarks/memory_format.py

A step is a forward and a backward pass over 32 images, an evaluation a forward pass over 256. Both formats
take turns, in one thread; of several turns the fastest counts.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from partita.device.memory_format import channels_last
from partita.models.convnet import ConvNet
from partita.tasks.process import prepare_process
from workload import cnn

TURNS = 15


def normed() -> nn.Module:
    """Return six convolutions with BatchNorm, for color images of 32 x 32."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "the quickstart's network, 8 x 8": (ConvNet, (1, 8, 8)),
    "two convolutions of 5 x 5, 28 x 28": (cnn, (1, 28, 28)),
    "six convolutions with BatchNorm, 32 x 32": (normed, (3, 32, 32)),
}


def step(model: nn.Module, images: Tensor) -> None:
    """Compute gradients."""
    model.train().zero_grad()
    model(images).square().mean().backward()


@torch.no_grad()
def evaluation(model: nn.Module, images: Tensor) -> None:
    """Compute outputs."""
    model.eval()(images)


def ratio(work: Callable[[nn.Module, Tensor], Any], model: nn.Module, images: Tensor) -> float:
    """Return the time in the usual format over that in channels-last format."""
    formats = images, channels_last(images)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS + 1):  # The first turn compiles kernels.
        for given, taken in zip(formats, seconds, strict=True):
            begin = time.perf_counter()
            work(model, given)
            taken.append(time.perf_counter() - begin)
    return min(seconds[0]) / min(seconds[1])


def main() -> None:
    """Print how many times as fast each network is."""
    torch.set_num_threads(1)
    prepare_process()
    for name, (make, shape) in CASES.items():
        torch.manual_seed(0)
        model = make()
        ratios = [ratio(work, model, torch.randn(n, *shape)) for work, n in ((step, 32), (evaluation, 256))]
        print(f"{name:<44} step {ratios[0]:.2f}x, evaluation {ratios[1]:.2f}x as fast")


if __name__ == "__main__":
    main()
