"""The plan of a run: its stages, and every round in them, in order."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from partita.data.examples import examples_of
from partita.errors import CannotDo
from partita.methods.descent import OptimizerFn
from partita.methods.method import Method
from partita.methods.sgd import SGD
from partita.protocol import Finetune, Pace, Stage, derive_seed
from partita.server.optimizers import Averaging, ServerOptimizer
from partita.server.schedules import Schedule, constant
from partita.tasks.task import Task

Split = Literal["test", "validation"]

BLOCK = 100
"""Devices in a round of finetuning or evaluation."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training rounds: pretraining, or personalizing."""

    method: Method
    """What a device does in a round."""
    rounds: int
    """How many rounds."""
    devices_per_round: int = 10
    """How many devices are asked in each."""
    schedule: Schedule = constant
    """How the devices' learning rates change over rounds."""
    server: ServerOptimizer = field(default_factory=Averaging)
    """The server's optimizer."""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise ValueError(f"`rounds` must be 0 or above, got {self.rounds}.")
        if self.devices_per_round < 1:
            raise ValueError(f"`devices_per_round` must be at least 1, got {self.devices_per_round}.")


@dataclass(frozen=True, kw_only=True)
class Finetuning:
    """The last stage: each device trains its personal part alone."""

    personal_lr: float
    """The learning rate."""
    epochs: int = 5
    """Passes over the device's training examples."""
    batch_size: int = 32
    """Examples in a step."""
    max_grad_norm: float = 0.0
    """The most that the norm of a step's gradient may be; 0 does not clip."""
    optimizer: OptimizerFn = SGD
    """The device's optimizer."""

    @property
    def work(self) -> Finetune:
        """The order that asks for it."""
        return Finetune(
            personal=Pace(lr=self.personal_lr, epochs=self.epochs),
            batch_size=self.batch_size,
            max_grad_norm=self.max_grad_norm,
        )

    def __post_init__(self) -> None:
        if not callable(self.optimizer):
            raise TypeError(f"`optimizer` must be a function of parameter groups, got {self.optimizer!r}.")
        _ = self.work  # Raises where a setting makes no sense.


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which devices are evaluated (and finetuned), and how often."""

    devices: int | None = None
    """How many, a fixed sample; None: all."""
    every: int = 0
    """Rounds from one evaluation to the next while training; 0: only at the end of each stage."""
    split: Split = "test"
    """Which rows models are judged by; with `validation`, test rows are not read."""
    choose: bool = False
    """Whether each device serves the better of the pretrained model and its own on its validation rows."""

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ValueError(f"`split` must be 'test' or 'validation', got {self.split!r}.")
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"`devices` must be at least 1 or 'all', got {self.devices}.")
        if self.every < 0:
            raise ValueError(f"`every` must be 0 or above, got {self.every}.")

    def check(self, task: Task) -> None:
        """Raise where models would be judged by validation rows and no device has any."""
        if not self.choose and self.split != "validation":
            return
        for device in task.devices.ids:
            with contextlib.suppress(CannotDo):
                splits = task.devices[device]
                if "validation" in splits and len(examples_of(splits["validation"])):
                    return
        raise ValueError(
            "`choose` and `split` need validation rows, and no device has any: give devices a split "
            "`validation`; of a table, `task.validation`, such as 0.2, holds rows out."
        )

    def positions(self, devices: int, *, seed: int) -> Sequence[int]:
        """Return the positions of the evaluated devices among all, in order."""
        if self.devices is None:
            return range(devices)
        if self.devices > devices:
            raise ValueError(
                f"`evaluate.devices` must be at most the number of devices, {devices}, got {self.devices}."
            )
        sample = random.Random(derive_seed(seed, "evaluate")).sample(range(devices), self.devices)
        return sorted(sample)


@dataclass(frozen=True)
class Turn:
    """One round of the run, committed as a whole."""

    stage: Stage
    work: Literal["update", "finetune", "evaluate"]
    round: int
    """The round of the stage; of an evaluation, how many training rounds came before it."""
    block: range = range(0)
    """Which of the evaluated devices are asked, where no cohort is drawn."""
    final: bool = False
    """Whether this evaluates the stage's outcome."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run does."""

    pretrain: Training | None = None
    """Trains all of the model on all devices."""
    personalize: Training | None = None
    """Trains the shared and the personal part."""
    finetune: Finetuning | None = None
    """Trains the personal part alone."""
    evaluate: Evaluation = field(default_factory=Evaluation)

    def training(self, stage: Stage) -> Training | None:
        """Return the training rounds of a stage, None where it has none."""
        rounds = {Stage.PRETRAINED: self.pretrain, Stage.PERSONALISED: self.personalize}.get(stage)
        return rounds if rounds and rounds.rounds else None

    def check(self, devices: int) -> None:
        """Raise where the plan asks for more devices than there are."""
        for name, stage in (("pretrain", Stage.PRETRAINED), ("personalize", Stage.PERSONALISED)):
            training = self.training(stage)
            if training and training.devices_per_round > devices:
                raise ValueError(
                    f"`{name}.devices_per_round` must be at most the number of devices, {devices}, "
                    f"got {training.devices_per_round}."
                )
        self.evaluate.positions(devices, seed=0)

    def turns(self, evaluated: int) -> Iterator[Turn]:
        """Yield every round of the run where `evaluated` devices are evaluated."""
        blocks = list(_blocks(evaluated))
        for stage in Stage:
            training = self.training(stage)
            rounds = training.rounds if training else 0
            if stage is Stage.FINETUNED and self.finetune and self.finetune.epochs:
                rounds = len(blocks)
            if not rounds and stage is not Stage.PRETRAINED:
                continue
            for round in range(rounds):
                if training:
                    yield Turn(stage, "update", round)
                else:
                    yield Turn(stage, "finetune", round, blocks[round])
                done = round + 1
                if training and done < rounds and self.evaluate.every and not done % self.evaluate.every:
                    yield from (Turn(stage, "evaluate", done, block) for block in blocks)
            yield from (Turn(stage, "evaluate", rounds, block, final=True) for block in blocks)


def _blocks(devices: int) -> Iterator[range]:
    for begin in range(0, devices, BLOCK):
        yield range(begin, min(begin + BLOCK, devices))
