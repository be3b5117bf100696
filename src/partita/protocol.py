"""The messages between server and device: an `Order` one way, a `Reply` back.

Data only: numbers, strings and tensors, no callables, so that the same round runs in one process, over
worker processes and over a network. `Reply` has no field for the personal part: it cannot leave the device.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from json.encoder import encode_basestring_ascii as json_text
from types import TracebackType
from typing import Literal, Protocol, Self, runtime_checkable

from partita.mean import Totals
from partita.params import Params

DeviceId = str
"""The id of a device: any string, unique among the devices of a task."""

Measures = Mapping[str, float | str | None]
"""Loss, metrics and counts of one device on one split, by name; None where undefined."""


class Stage(StrEnum):
    """The stages of a run, named after the model that each one ends with."""

    PRETRAINED = "pretrained"
    PERSONALIZED = "personalized"
    FINETUNED = "finetuned"
    SERVED = "served"
    """No training: for each device, the better of the pretrained model and its own."""


_LARGEST = 3.4028234663852886e38
"""The largest number of float32, in which models are trained."""


def check_number(name: str, value: float) -> None:
    """Raise unless a setting that tensors are multiplied with is 0 or above and fits in float32.

    >>> check_number("`lr`", 1e39)
    Traceback (most recent call last):
        ...
    ValueError: `lr` must be a finite number, 0 or above, and fit in float32, got 1e+39.
    """
    if not 0 <= value <= _LARGEST:
        fits = ", and fit in float32" if _LARGEST < value < math.inf else ""
        raise ValueError(f"{name} must be a finite number, 0 or above{fits}, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Learning rate and number of steps for one part of the model in a visit."""

    lr: float
    """The learning rate, constant inside a visit."""
    epochs: int = 0
    """Passes over the device's training examples."""
    steps: int = 0
    """Steps instead of epochs, independent of the number of examples."""

    def __post_init__(self) -> None:
        check_number("A learning rate", self.lr)
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
    """Train with this round's learning rates, and reply with the change of the shared part.

    All other settings of training are the device's own, from its role.
    """

    personal: Pace
    shared: Pace

    def scaled(self, factor: float) -> "Update":
        """Return the same update with both learning rates times `factor`."""
        return replace(self, personal=self.personal.scaled(factor), shared=self.shared.scaled(factor))


@dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train and keep the personal part alone."""

    personal: Pace


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Evaluate a model on some splits of the device's data."""

    model: Literal["global", "personal"]
    """The shared part with the personal part's start, or with the device's own."""
    splits: tuple[str, ...] = ("train", "test")
    """Splits of the device's data; a split that the device lacks is left out."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """The parts of the model that devices start with, apart from the shared part."""

    digest: str
    """Digest of the personal part, by which a device knows whether it already has it."""
    personal: Params | None
    """The personal part; None for a device that already has it."""
    frozen: str
    """Digest of the frozen part: the device must have the same one, and no training round sends it."""
    pretrained: Params | None = None
    """The pretrained values of tensors that pretraining trains and that are frozen from then on. None for a
    device that already has them."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One visit: the work that the server asks of one device."""

    stage: Stage
    round: int
    device: DeviceId
    work: Update | Finetune | Evaluate
    shared: Params
    start: Start
    counted: str | None = None
    """Label of the last round in which this device's personal part was counted."""
    keep: str | None = None
    """Label of the best round so far, if training may stop early. The device copies its personal part under
    this label before it saves a new one."""
    single: bool = False
    """Whether the server needs the change of this device by itself: an executor that adds up changes must
    leave it out of its sums and reply with it."""

    @property
    def label(self) -> str:
        """The label under which the device stores its new personal part until the round is committed."""
        return label_of(self.stage, self.round)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A device's answer: the change of the shared part where an update was asked for, and metrics."""

    device: DeviceId
    weight: int
    change: Params | None
    """For an `Update`, exactly the names and shapes of the shared part; otherwise None."""
    metrics: Mapping[str, Measures]
    """By split: `train` for an update or fine-tuning, every requested split for an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A device that could not do its work; its personal part is unchanged."""

    device: DeviceId
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The sum of the changes of some devices, made by the executor: their replies have no change."""

    devices: Sequence[DeviceId]
    """The devices whose changes are in the sum, each of which also replies."""
    totals: Totals


class Executor(Protocol):
    """Where devices run: a context manager, entered by whoever starts the run."""

    def __enter__(self) -> Self:
        """Start the executor."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the executor."""
        ...

    def devices(self) -> Sequence[DeviceId]:
        """Return the devices that can be asked."""
        ...

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Carry out the orders and yield the answers, in any order.

        The change of an order that is `single` comes with its reply; others may be in a tally. The tensors of
        a tally hold only until the next answer is asked for. When all have been yielded, what devices have
        saved is on disk.
        """
        ...

    def close(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """End the round `label`: of the devices `asked`, only the `counted` keep their new personal part."""
        ...

    def restore(self, label: str) -> None:
        """Let every device go back to the part it preserved for `label`; repeating this does no harm.

        A device must have gone back before it is asked again. Only training that may stop early needs this.
        """
        ...


@runtime_checkable
class MeasuresTime(Protocol):
    """An executor whose visits take processor time in other processes."""

    @property
    def seconds(self) -> float:
        """The processor time of all visits so far."""
        ...


def label_of(stage: Stage, round: int) -> str:
    """Return the label of a round, unique among the rounds of a run in which a device trains.

    Fine-tuning has the same labels for unseen devices as for the others: no device is in both.
    """
    return f"{stage}-{round}"


@lru_cache(maxsize=16)  # A visit needs it several times.
def key_of(device: DeviceId) -> str:
    """Return a file name for any device id: a readable prefix, and a digest that makes it unique.

    >>> key_of("../form 3")
    'form_3-3e9c02f377571278'
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "_", device).strip("_")[:40]
    return f"{readable}-{hashlib.sha256(device.encode()).hexdigest()[:16]}"


@lru_cache(maxsize=16, typed=True)  # A visit needs its seed twice.
def derive_seed(seed: int, *path: str | int) -> int:
    """Return the seed for one use of randomness, derived from the run's seed and its purpose.

    >>> derive_seed(1, "personalized", 0, "a") == derive_seed(1, "personalized", 0, "b")
    False
    """
    # The JSON of a list, which `json.dumps` takes several times as long to write.
    values = [json_text(value) if isinstance(value, str) else str(value) for value in (seed, *path)]
    digest = hashlib.sha256(f"[{', '.join(values)}]".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
