"""The work that all contestants do: a round of federated averaging with plain SGD, on random images.

Only torch is needed here, because contestants in environments without Partita import it too. Models and data
follow from fixed seeds, so every process has the same ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

LR = 0.1
EXAMPLES = 10
"""Examples of a device, all in one batch: their order changes a result by rounding only."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model, and the number of devices and of steps that each of them takes in a round."""

    model: str
    """`linear` or `cnn`."""
    steps: int = 1
    """Steps of a device in a round, each on its whole batch."""
    devices: int = 50

    @property
    def checked_rounds(self) -> int:
        """Rounds after which the contestants' models are compared: with more, rounding may switch a ReLU.

        With five steps a round, two rounds of the same loop on permuted rows already differ by 5 %.
        """
        return 2 if self.steps == 1 else 1

    def make_model(self) -> nn.Module:
        """Return the model with its initial values."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return MODELS[self.model]()

    def make_data(self) -> list[Batch]:
        """Return the batch of each device."""
        draw = torch.Generator().manual_seed(0)
        return [
            (torch.randn(EXAMPLES, 1, 28, 28, generator=draw), torch.randint(10, (EXAMPLES,), generator=draw))
            for _ in range(self.devices)
        ]

    def flops(self) -> float:
        """Return the floating-point operations of a round: forward and backward passes of all devices."""
        model, batch = self.make_model(), self.make_data()[0]
        with FlopCounterMode(display=False) as counter:
            loss_of(model, batch).backward()
        return counter.get_total_flops() * self.steps * self.devices

    def check(self, parameters: list[Tensor]) -> list[float]:
        """Return the change since the initial values: its norm, and its product with some random vectors."""
        initial = [parameter.detach() for parameter in self.make_model().parameters()]
        change = _flat(parameters) - _flat(initial)
        draw = torch.Generator().manual_seed(1)
        products = [float(change @ torch.randn(len(change), generator=draw).double()) for _ in range(4)]
        return [float(change.norm()), *products]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean loss of a batch."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def agree(one: list[float], other: list[float]) -> bool:
    """Return whether two checks differ by no more than rounding; a device left out would show as 2e-2."""
    return all(abs(a - b) <= 3e-3 * one[0] for a, b in zip(one, other, strict=True))


def linear() -> nn.Module:
    """Return 7,850 parameters: almost all that is measured is overhead."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def cnn() -> nn.Module:
    """Return a convolutional network of 1.6 million parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 496), nn.ReLU(), nn.Linear(496, 10)),
    )


MODELS = {"linear": linear, "cnn": cnn}


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])
