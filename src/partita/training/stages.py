"""The server's side of each stage: the start of u, the server's step, and the orders to devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from torch import Tensor

from partita.methods.carried import sent_by
from partita.methods.declared import has_own_model
from partita.params import Params, digest_of
from partita.partition import Parts, Personalization
from partita.partition.common import digest_of_frozen, is_common
from partita.protocol import DeviceId, Evaluate, Finetune, Order, Stage, Start, Update, label_of
from partita.server.aggregation import Aggregator
from partita.server.optimizers import Averaging
from partita.server.round import Server, State
from partita.server.sampling import sample_cohort, sample_spare
from partita.tasks.build import build_model, split_by_stage
from partita.tasks.task import Task
from partita.training.evaluation import MODEL_OF
from partita.training.failures import FailureLimit, TrainingFailures, failures_by_stage
from partita.training.journal import Journal, RoundRow
from partita.training.plan import Plan, Turn
from partita.training.stopping import Stopping


class Stages:
    """The stages of a run, each starting from the result of the one before, which is in the journal.

    Args:
        task: data, model, loss and metrics.
        personalization: how the model is split after pretraining.
        plan: the rounds of every stage.
        seed: the run's seed.
        devices: all devices that can be asked, the unseen ones too.
        journal: holds the results of earlier stages.
    """

    def __init__(
        self,
        task: Task,
        personalization: Personalization,
        plan: Plan,
        *,
        seed: int,
        devices: Sequence[DeviceId],
        journal: Journal,
    ) -> None:
        self.task = task
        self.plan = plan
        self.seed = seed
        self.all_devices = devices
        self.devices, unseen = plan.evaluate.divide(devices)
        self.unseen = unseen if plan.evaluate.onboards else ()
        self.journal = journal
        pretrains = plan.training(Stage.PRETRAINED) is not None
        self.splits = split_by_stage(task, personalization, seed=seed, pretrains=pretrains)
        self.start_of = cache(self._start_of)
        self.evaluated = plan.evaluate.evaluated(self.devices, seed=seed)
        self.turns = plan.turns(self.evaluated)

    def open(self, stage: Stage) -> "ServerStage":
        """Return the server's side of a stage."""
        parts = self.initial_parts(stage, self.splits[stage])
        shared = self.journal.shared(Stage.PERSONALIZED) if stage is Stage.FINETUNED else parts.shared
        training, partition = self.plan.training(stage), self.splits[stage].partition
        sent = sent_by(training.method.local, partition, shared) if training else {}
        server = Server(
            optimizer=training.server if training else Averaging(),
            buffers=partition.buffers("shared"),
            sent={name: each.aggregation for name, each in sent.items()},
            devices=len(self.devices),
        )
        start = server.begin({**shared, **{name: each.tensor for name, each in sent.items()}})
        return ServerStage(
            self,
            stage,
            server=server,
            start=start,
            frozen=parts.frozen,
            failures=self.failures(stage),
            stopping=self.stopping(stage),
            visited=self.evaluated,
            limit=self.limit(stage),
        )

    def trained(self, stage: Stage, devices: Sequence[DeviceId]) -> "ServerStage":
        """Return the server's side of a stage whose training is over, for devices that it has not seen."""
        partition = self.splits[stage].partition
        saved = self.journal.shared(Stage.PRETRAINED if stage is Stage.PRETRAINED else Stage.PERSONALIZED)
        server = Server(optimizer=Averaging())
        return ServerStage(
            self,
            stage,
            server=server,
            start=server.begin({name: saved[name] for name in partition.names("shared")}),
            frozen={},
            failures=failures_by_stage(self.journal.onboarding()).get(stage, TrainingFailures()),
            stopping=self.stopping(stage),
            visited=devices,
            seen=False,
        )

    def failures(self, stage: Stage, best: int | None = None) -> TrainingFailures:
        """Return the devices whose last visit failed in the committed rounds of a stage, up to its best."""
        ends: dict[str, int] = {} if best is None else {stage: best}
        return failures_by_stage(self.journal.rounds(), ends).get(stage, TrainingFailures())

    def limit(self, stage: Stage) -> FailureLimit:
        """Return how many devices may fail in a stage after its committed rounds."""
        limit = FailureLimit(self.plan.max_failed)
        for line in self.journal.rounds():
            if line["stage"] == stage:
                limit.add(line)
        return limit

    def stopping(self, stage: Stage) -> Stopping:
        """Return the early stopping of a stage after its committed rounds."""
        training, task = self.plan.training(stage), self.task
        turns = [turn for turn in self.turns if turn.stage is stage]
        patience = training.patience if training else 0
        stopping = Stopping(patience, task.metrics[task.headline].direction, turns)
        if patience:
            stopping.replay(line for line in self.journal.rounds() if line["stage"] == stage)
        return stopping

    def starts(self, stage: Stage) -> Mapping[str, Params]:
        """Return the tensors that a stage starts with and that the run keeps, by name.

        After pretraining these are v's start, one for each size of personal part, and u where no training
        round will save it.
        """
        if stage is Stage.PRETRAINED:
            return {}
        own = self.splits[stage]
        found: dict[str, Params] = {}
        for kind, _, _ in own.kinds(self.all_devices):
            start = self.start_of(stage, kind)
            found["start" if own.by_device is None else f"start-{start.digest[:8]}"] = start.personal or {}
        if self.plan.training(Stage.PERSONALIZED) is None:
            found[Stage.PERSONALIZED] = self.initial_parts(stage, own).shared
        return found

    def initial_parts(self, stage: Stage, own: Personalization) -> Parts:
        """Return the parts of the initial model; after the first stage, of the pretrained one."""
        pretrained = None if stage is Stage.PRETRAINED else self.journal.shared(Stage.PRETRAINED)
        parts = own.partition.of(build_model(self.task, own, seed=self.seed, state=pretrained))
        return Parts(_detached(parts.shared), _detached(parts.personal), _detached(parts.frozen))

    def _start_of(self, stage: Stage, own: Personalization) -> Start:
        """Return the common start of all devices with the same model; random values are drawn only once."""
        parts = self.initial_parts(stage, own)
        later = own.partition.frozen_before.later if self.plan.training(Stage.PRETRAINED) else ()
        return Start(
            digest=digest_of(parts.personal),
            personal=parts.personal,
            frozen=digest_of_frozen(parts.frozen),
            pretrained={name: parts.frozen[name] for name in later},
        )


def _detached(part: Params) -> dict[str, Tensor]:
    """Return the tensors of a model that is not needed any more; common ones are known by identity."""
    return {name: tensor if is_common(tensor) else tensor.detach() for name, tensor in part.items()}


@dataclass(frozen=True)
class ServerStage:
    """The server's side of one stage, besides its state."""

    stages: Stages
    stage: Stage
    server: Server
    start: State
    """The server's state at the beginning of the stage."""
    frozen: Params
    failures: TrainingFailures
    """The devices whose last visit in this stage failed; grows in place."""
    stopping: Stopping
    """The stage's best round so far; grows in place."""
    visited: Sequence[DeviceId]
    """The devices that are fine-tuned and evaluated."""
    seen: bool = True
    """Whether training has seen them."""
    limit: FailureLimit = field(default_factory=FailureLimit)
    """How many devices may fail; grows in place."""

    @property
    def failed_models(self) -> Mapping[DeviceId, str]:
        """The devices whose own model of this stage failed, with reasons.

        There are none where every device evaluates the same model: the pretrained one, or one without
        personal tensors or state, unless the method declares a model of each device's own.
        """
        training = self.stages.plan.training(self.stage)
        is_kept = training is None or training.method.stateful
        has_personal = bool(self.stages.splits[self.stage].partition.names("personal"))
        has_own = has_personal or (training is not None and has_own_model(training.method.local))
        return self.failures.reasons if is_kept and has_own else {}

    def add(self, turn: Turn, line: RoundRow) -> None:
        """Add a round to the failures and to the early stopping, in place."""
        self.failures.add(line)
        self.limit.add(line)
        self.stopping.add(turn, line)

    def at_best(self, turn: Turn) -> Turn:
        """Return a round; if training may stop early, a final evaluation has the number of the best round."""
        best = self.stopping.best
        return turn if best is None or not turn.final else replace(turn, round=best)

    def cohort(self, turn: Turn) -> Sequence[DeviceId]:
        """Return the devices of a round: a sample in training, otherwise a block of evaluated devices."""
        devices, training = self.stages.devices, self.stages.plan.training(self.stage)
        if turn.work != "update" or training is None:
            return [self.visited[position] for position in turn.block]
        count, seed, size = len(devices), self.stages.seed, training.devices_per_round
        sample = sample_cohort(count, size, seed=seed, stage=self.stage, round=turn.round)
        if spare := training.over_select:
            sample += sample_spare(count, sample, spare, seed=seed, stage=self.stage, round=turn.round)
        return [devices[position] for position in sample]

    def wanted(self, turn: Turn) -> int | None:
        """Return how many replies of a round count, the first of its cohort; None: all of them."""
        training = self.stages.plan.training(self.stage)
        return training.devices_per_round if training and turn.work == "update" else None

    def orders(self, turn: Turn, cohort: Sequence[DeviceId], state: State) -> list[Order]:
        """Return the order for every device of a cohort."""
        work = self._work(turn)
        shared = state.shared if isinstance(work, Update) else self.shared_part(state)
        split, summed = self.stages.splits[self.stage], self._summed(turn)
        best = self.stopping.best if isinstance(work, Update) else None
        return [
            Order(
                stage=self.stage,
                round=turn.round,
                device=device,
                work=work,
                shared=shared,
                start=self.stages.start_of(self.stage, split.on(device)),
                keep=None if best is None else label_of(self.stage, best),
                single=summed is not None and number >= summed,
            )
            for number, device in enumerate(cohort)
        ]

    def aggregator(self, turn: Turn, state: State) -> Aggregator | None:
        """Return the aggregator of a round; None where devices send no changes."""
        training = self.stages.plan.training(self.stage)
        return training.begin(state.shared) if training and turn.trains_shared else None

    def shared_part(self, state: State) -> dict[str, Tensor]:
        """Return u without the other tensors that the method sends."""
        return {name: tensor for name, tensor in state.shared.items() if name not in self.server.sent}

    def result(self, state: State) -> dict[str, Tensor]:
        """Return the tensors that the stage's training ends with: all of w_g after pretraining, u later.

        A pretrained base, which every process reads from its own file, is left out.
        """
        frozen = self.frozen if self.stage is Stage.PRETRAINED else {}
        whole = {name: tensor for name, tensor in frozen.items() if not is_common(tensor)}
        return {**self.shared_part(state), **whole}

    def _summed(self, turn: Turn) -> int | None:
        """Return of how many devices, the first of a cohort, changes may be added up; None: of all.

        For a spare device it does: whether its change counts is only known when the others have answered.
        """
        training, wanted = self.stages.plan.training(self.stage), self.wanted(turn)
        return 0 if training and wanted is not None and training.needs_single else wanted

    def _work(self, turn: Turn) -> Update | Finetune | Evaluate:
        plan = self.stages.plan
        training = plan.training(self.stage)
        if turn.work == "update" and training is not None:
            return training.method.update.scaled(training.schedule(turn.round, training.rounds))
        if turn.work == "finetune" and plan.finetune is not None:
            return plan.finetune.work
        split = plan.evaluate.split
        splits = dict.fromkeys(("train", "validation", split)) if turn.final else (split,)
        if self.stopping.depends_on(turn):
            splits = dict.fromkeys((split, "validation"))
        return Evaluate(model=MODEL_OF[self.stage], splits=tuple(splits))
