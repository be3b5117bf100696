"""The plan of a run: its stages and all of their rounds, in order."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from partita.data.examples import examples_of
from partita.data.unseen import divide
from partita.errors import CannotDo
from partita.methods.method import Finetuning, Method
from partita.protocol import DeviceId, Stage, derive_seed
from partita.server.optimizers import Averaging, ServerOptimizer
from partita.server.schedules import Schedule, constant
from partita.tasks.task import Task

Split = Literal["test", "validation"]

BLOCK = 100
"""Devices in a round of fine-tuning or evaluation."""
_NO_VALIDATION = (
    "validation rows, and no device has any: give devices a split `validation`; with a table, set "
    "`task.validation`, for example to 0.2."
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Rounds of training: pretraining, or personalization."""

    method: Method
    """How devices learn in a round."""
    rounds: int = 100
    """Number of rounds."""
    devices_per_round: int = 10
    """Number of devices that train in each round."""
    schedule: Schedule = constant
    """Schedule of the devices' learning rates over rounds."""
    server: ServerOptimizer = field(default_factory=Averaging)
    """Optimizer of the server."""
    patience: int = 0
    """Early stopping: stop after so many rounds without a better metric on the validation split, and go back
    to the best round; 0: off. The metric is measured after every `evaluate.every` rounds (if that is 0, a
    fifth of `patience`, at least 1) and after the last round, over the devices that are evaluated during
    training. Learning rates follow the planned `rounds`."""

    def __post_init__(self) -> None:
        if self.patience < 0:
            raise ValueError(f"`patience` must be 0 or above, got {self.patience}.")
        if self.rounds < 0:
            raise ValueError(f"`rounds` must be 0 or above, got {self.rounds}.")
        if self.devices_per_round < 1:
            raise ValueError(f"`devices_per_round` must be at least 1, got {self.devices_per_round}.")

    def check(self, task: Task) -> None:
        """Raise if early stopping needs validation rows and no device has any."""
        if self.patience and self.rounds and not _has_validation(task):
            raise ValueError(f"`patience` needs {_NO_VALIDATION}")

    def evaluates_after(self, done: int, every: int) -> bool:
        """Return whether devices are evaluated during training after `done` rounds.

        Args:
            done: number of rounds done.
            every: rounds between evaluations; 0: only where early stopping needs them.
        """
        if done == self.rounds:
            return bool(self.patience)
        every = every or (max(1, self.patience // 5) if self.patience else 0)
        return bool(every) and not done % every


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation: on which devices (only these are fine-tuned), how often, and on which split."""

    devices: int | Literal["all"] = "all"
    """Number of devices to evaluate, a fixed sample; or "all". Unseen devices are evaluated besides."""
    every: int = 0
    """Rounds between evaluations during training; 0: only at the end of each stage."""
    sample: int | Literal["all"] = "all"
    """Number of these devices to evaluate during training, a fixed sample; or "all"."""
    split: Split = "test"
    """Split on which models are evaluated; with `validation`, for tuning, test rows are not read and unseen
    devices not visited."""
    choose: Literal["", "validation"] = ""
    """If `choose` is "validation", each device uses the pretrained model or its own, whichever is better on
    its validation rows (see `task.validation`); reported as the stage `served`. Empty: no such choice."""
    unseen: float = 0.0
    """Share of devices, by a hash of their ids, that no training sees and no derived value depends on; all of
    them are fine-tuned and evaluated at the end, from the start of v, and reported beside the others."""

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ValueError(f"`split` must be 'test' or 'validation', got {self.split!r}.")
        if self.choose not in ("", "validation"):
            raise ValueError(f"`choose` must be '' or 'validation', got {self.choose!r}.")
        for name, value in (("devices", self.devices), ("sample", self.sample)):
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value != "all" and not is_count:
                raise ValueError(f"`{name}` must be 'all' or a number, at least 1, got {value!r}.")
        if self.every < 0:
            raise ValueError(f"`every` must be 0 or above, got {self.every}.")
        if not 0 <= self.unseen < 1:
            raise ValueError(f"`unseen` must be at least 0 and below 1, got {self.unseen!r}.")

    def check(self, task: Task) -> None:
        """Raise if validation rows are needed and no device has any."""
        if not self.choose and self.split != "validation":
            return
        if not _has_validation(task):
            raise ValueError(f"`choose` and `split` need {_NO_VALIDATION}")

    @property
    def onboards(self) -> bool:
        """Whether unseen devices are fine-tuned and evaluated at the end."""
        return self.unseen > 0 and self.split == "test"

    def divide(self, devices: Sequence[DeviceId]) -> tuple[Sequence[DeviceId], Sequence[DeviceId]]:
        """Return the devices that training sees, and the unseen ones."""
        return divide(devices, self.unseen)

    def positions(self, devices: int, *, seed: int) -> Sequence[int]:
        """Return the positions of the evaluated devices among all seen ones, in order."""
        if self.devices == "all":
            return range(devices)
        if self.devices > devices:
            raise ValueError(
                f"`evaluate.devices` must be at most the number of devices, {devices}, got {self.devices}."
            )
        sample = random.Random(derive_seed(seed, "evaluate")).sample(range(devices), self.devices)
        return sorted(sample)

    def sampled(self, evaluated: int, *, seed: int) -> Sequence[int]:
        """Return the positions, among the evaluated devices, of those evaluated during training, in order."""
        if self.sample == "all":
            return range(evaluated)
        if self.sample > evaluated:
            raise ValueError(
                f"`evaluate.sample` must be at most the number of evaluated devices, {evaluated}, "
                f"got {self.sample}."
            )
        sample = random.Random(derive_seed(seed, "evaluate", "sample")).sample(range(evaluated), self.sample)
        return sorted(sample)


@dataclass(frozen=True)
class Turn:
    """One round of the run, committed as a whole."""

    stage: Stage
    work: Literal["update", "finetune", "evaluate"]
    round: int
    """Number of the round in its stage; for an evaluation, the number of training rounds before it."""
    block: Sequence[int] = range(0)
    """Positions of this round's devices among the evaluated ones, if no cohort is drawn."""
    final: bool = False
    """Whether this evaluates the final model of the stage."""
    number: int = 0
    """Position of the round in the run, from 0."""

    @property
    def trains_shared(self) -> bool:
        """Whether devices reply with changes of u."""
        return self.work == "update"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stages of a run."""

    pretrain: Training | None = None
    """Training of the whole model."""
    personalize: Training | None = None
    """Training of the shared and the personal part."""
    finetune: Finetuning | None = None
    """Training of the personal part alone."""
    evaluate: Evaluation = field(default_factory=Evaluation)
    """Evaluation, and the devices that are fine-tuned."""

    def training(self, stage: Stage) -> Training | None:
        """Return the training rounds of a stage, None if it has none."""
        rounds = {Stage.PRETRAINED: self.pretrain, Stage.PERSONALIZED: self.personalize}.get(stage)
        return rounds if rounds and rounds.rounds else None

    @property
    def trainings(self) -> dict[str, Training]:
        """The training rounds of the stages that have any, by their section of a config."""
        stages = {"pretrain": Stage.PRETRAINED, "personalize": Stage.PERSONALIZED}
        found = {name: self.training(stage) for name, stage in stages.items()}
        return {name: training for name, training in found.items() if training}

    def check(self, devices: Sequence[DeviceId]) -> None:
        """Raise if the plan needs more devices than there are, or none are seen or unseen."""
        seen = len(self.evaluate.divide(devices)[0])
        for name, training in self.trainings.items():
            if training.devices_per_round > seen:
                raise ValueError(
                    f"`{name}.devices_per_round` must be at most the number of devices, {seen}, "
                    f"got {training.devices_per_round}."
                )
        self.evaluate.sampled(len(self.evaluate.positions(seen, seed=0)), seed=0)

    def turns(self, evaluated: int, *, seed: int = 0) -> list[Turn]:
        """Return every round of a run that evaluates a number of devices; the seed draws the sample."""
        turns = self._turns(range(evaluated), self.evaluate.sampled(evaluated, seed=seed))
        return [replace(turn, number=number) for number, turn in enumerate(turns)]

    def _turns(self, evaluated: Sequence[int], sampled: Sequence[int]) -> Iterator[Turn]:
        blocks, sample = list(_blocks(evaluated)), list(_blocks(sampled))
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
                if training and training.evaluates_after(done, self.evaluate.every):
                    yield from (Turn(stage, "evaluate", done, block) for block in sample)
            yield from (Turn(stage, "evaluate", rounds, block, final=True) for block in blocks)


def _has_validation(task: Task) -> bool:
    """Return whether any device has validation rows."""
    for device in task.devices.ids:
        with contextlib.suppress(CannotDo):
            splits = task.devices[device]
            if "validation" in splits and len(examples_of(splits["validation"])):
                return True
    return False


def _blocks(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(positions), BLOCK):
        yield positions[begin : begin + BLOCK]
