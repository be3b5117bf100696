"""The plan of a run: its stages and all of their rounds, in order."""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from partita.data.unseen import divide
from partita.methods.method import Finetuning, Method
from partita.protocol import DeviceId, Stage, derive_seed
from partita.server.optimizers import Averaging, ServerOptimizer
from partita.server.schedules import Schedule, constant

Split = Literal["test", "validation"]

BLOCK = 100
"""Devices in a round of fine-tuning or evaluation."""
_MAX_ROUNDS = 10_000_000
"""The maximum number of rounds of a stage: a run has a list of them all."""


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
        if not 0 <= self.rounds <= _MAX_ROUNDS:
            most = f", at most {_MAX_ROUNDS:,}" if self.rounds > 0 else ""
            raise ValueError(f"`rounds` must be 0 or above{most}, got {self.rounds}.")
        if self.devices_per_round < 1:
            raise ValueError(f"`devices_per_round` must be at least 1, got {self.devices_per_round}.")

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
    """Number of these devices to evaluate during training, those with the smallest hashes of their ids: the
    same for all seeds; or "all"."""
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
        sample = random.Random(derive_seed(seed, "evaluate")).sample(range(devices), self.devices)
        return sorted(sample)

    def evaluated(self, seen: Sequence[DeviceId], *, seed: int) -> Sequence[DeviceId]:
        """Return the evaluated devices among all seen ones, in order."""
        positions = self.positions(len(seen), seed=seed)
        return seen if self.devices == "all" else [seen[position] for position in positions]

    def sampled(self, evaluated: Sequence[DeviceId]) -> Sequence[int]:
        """Return the positions, among the evaluated devices, of those evaluated during training, in order."""
        if self.sample == "all":
            return range(len(evaluated))
        # Not drawn by the seed: the range of a curve over seeds would be one over samples too.
        positions = range(len(evaluated))
        return sorted(
            heapq.nsmallest(self.sample, positions, key=lambda at: derive_seed(0, "sample", evaluated[at]))
        )

    def sample_size(self, evaluated: int) -> int:
        """Return the number of devices that are evaluated during training, of those that are evaluated."""
        return evaluated if self.sample == "all" else self.sample


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
        """Raise if the plan needs more devices than there are, or if all or none of them are unseen."""
        seen, unseen = self.evaluate.divide(devices)
        number = f"the number of devices, {len(seen)}"
        if unseen:
            share = f"{len(unseen)} of {len(devices)} are unseen, `evaluate.unseen`"
            number = f"the number of devices in training, {len(seen)} ({share})"
        wanted = {f"{name}.devices_per_round": own.devices_per_round for name, own in self.trainings.items()}
        if self.evaluate.devices != "all":
            wanted["evaluate.devices"] = self.evaluate.devices
        for key, count in wanted.items():
            if count > len(seen):
                raise ValueError(f"`{key}` must be at most {number}, got {count}.")
        evaluated = wanted.get("evaluate.devices", len(seen))
        if self.evaluate.sample_size(evaluated) > evaluated:
            raise ValueError(
                f"`evaluate.sample` must be at most the number of evaluated devices, {evaluated}, "
                f"got {self.evaluate.sample}."
            )

    def turns(self, evaluated: Sequence[DeviceId]) -> list[Turn]:
        """Return every round of a run, given the devices that it evaluates."""
        turns = self._turns(range(len(evaluated)), self.evaluate.sampled(evaluated))
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


def _blocks(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(positions), BLOCK):
        yield positions[begin : begin + BLOCK]
