"""What the server and a device say to each other: an `Order` one way, a `Reply` back.

Data only: numbers, strings and tensors, no callables, so that the same round runs in one process, over
worker processes and over a network. `Reply` has no field for the personal part: it cannot leave.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, Protocol, get_args

from partita.params import Params

DeviceId = str
"""Who a device is: any text, unique among the devices of a task."""

Measures = Mapping[str, float | str | None]
"""What was measured on a device, by name; None where it is undefined."""

Weights = Literal["examples", "equal"]
"""How much a device counts in the mean: as its training examples, or the same as any other."""


class Stage(StrEnum):
    """The stages of a run, named by what the model is after them."""

    PRETRAINED = "pretrained"
    PERSONALISED = "personalised"
    FINETUNED = "finetuned"
    SERVED = "served"
    """Not trained: for each device the better of the pretrained model and its own."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How far and how fast one part of the model moves in a visit."""

    lr: float
    """The learning rate, constant inside a visit."""
    epochs: int = 0
    """Passes over the device's training examples."""
    steps: int = 0
    """Steps instead of epochs, however many examples the device has."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ValueError(f"A learning rate must be a finite number, 0 or above, got {self.lr!r}.")
        if self.epochs < 0 or self.steps < 0:
            raise ValueError(
                f"Epochs and steps must be 0 or above, got {self.epochs} epochs and {self.steps} steps."
            )
        if self.epochs and self.steps:
            raise ValueError(f"Give epochs or steps, not both: got {self.epochs} and {self.steps}.")

    def scaled(self, factor: float) -> "Pace":
        """Return the same pace with the learning rate times `factor`."""
        return replace(self, lr=self.lr * factor)


@dataclass(frozen=True, kw_only=True)
class Update:
    """Train, and reply with the change of the shared part."""

    personal: Pace
    shared: Pace
    batch_size: int = 32
    max_grad_norm: float = 0.0
    """The most that the norm of all that moves in a step may be; 0 does not clip."""
    weights: Weights = "examples"
    proximal: float = 0.0
    """How strongly the shared part is held to what was sent: (proximal / 2) ||u - sent u||^2 is added."""

    def __post_init__(self) -> None:
        _check_batches(self.batch_size, self.max_grad_norm)
        if not 0 <= self.proximal < math.inf:
            raise ValueError(f"`proximal` must be a finite number, 0 or above, got {self.proximal!r}.")
        if self.weights not in get_args(Weights):
            raise ValueError(f"`weights` must be 'examples' or 'equal', got {self.weights!r}.")

    def scaled(self, factor: float) -> "Update":
        """Return the same update with both learning rates times `factor`."""
        return replace(self, personal=self.personal.scaled(factor), shared=self.shared.scaled(factor))


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train the personal part alone and keep it."""

    personal: Pace
    batch_size: int = 32
    max_grad_norm: float = 0.0

    def __post_init__(self) -> None:
        _check_batches(self.batch_size, self.max_grad_norm)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on some splits of the device's data."""

    model: Literal["global", "personal"]
    """The shared part with the personal part's start, or with the device's own."""
    splits: tuple[str, ...] = ("train", "test")
    """Of the device's data; a split that it lacks is not measured."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What every device begins with, apart from the shared part."""

    digest: str
    """Of the personal part, by which a device knows whether it has it already."""
    personal: Params | None
    """The personal part itself; None for a device that has it."""
    frozen: str
    """The digest of the frozen part, which is never sent: the device must have the same."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One visit: what the server asks of one device."""

    run: str
    stage: Stage
    round: int
    device: DeviceId
    work: Update | Finetune | Evaluate
    shared: Params
    start: Start
    counted: str | None = None
    """The label of the last round in which this device's personal part was counted."""

    @property
    def label(self) -> str:
        """What a personal part trained on this order is filed under until it is counted."""
        return label_of(self.stage, self.round)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What comes back: a change of the shared part where one was asked for, and measurements."""

    devices: tuple[DeviceId, ...]
    """One id, or several where an executor has summed already."""
    weight: int
    change: Params | None
    """Exactly the names and shapes of the shared part for an `Update`, else None."""
    metrics: Mapping[str, Measures]
    """By split: `train` for an update or a finetuning, each split asked for in an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A device that could not do what was asked; its personal part is as it was."""

    device: DeviceId
    reason: str


class Executor(Protocol):
    """Where devices run."""

    def devices(self) -> Sequence[DeviceId]:
        """Return the devices that can be asked."""
        ...

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Failure]:
        """Carry out the orders and yield what comes back, in any order."""
        ...

    def close(self, label: str, counted: Sequence[DeviceId]) -> None:
        """End the round `label`: the devices `counted` keep what they learned in it, others do not."""
        ...


def label_of(stage: Stage, round: int) -> str:
    """Return the name of a round, unique among those of a run that move personal parts."""
    return f"{stage}-{round}"


def derive_seed(seed: int, *path: str | int) -> int:
    """Return the seed of one use of randomness, a function of the run's seed and what it is for.

    >>> derive_seed(1, "personalised", 0, "a") == derive_seed(1, "personalised", 0, "b")
    False
    """
    digest = hashlib.sha256(json.dumps([seed, *path]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _check_batches(batch_size: int, max_grad_norm: float) -> None:
    """Raise where a visit's batch size or clipping makes no sense."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
    if not (math.isfinite(max_grad_norm) and max_grad_norm >= 0):
        raise ValueError(
            f"`max_grad_norm` must be a finite number, 0 (no clipping) or above, got {max_grad_norm!r}."
        )
