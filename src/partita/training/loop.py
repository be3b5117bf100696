"""The pipeline of the paper: pretrain w_g, personalize u and v_i from it, finetune v_i alone.

Every round is committed before the next one begins, so a run that ended anywhere can go on from there.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from partita.device.visit import Visitor
from partita.errors import ConfigError, RunFailed
from partita.executors.serial import SerialExecutor
from partita.partition import Partition
from partita.protocol import (
    DeviceId,
    Evaluate,
    Executor,
    Finetune,
    Order,
    Pace,
    Stage,
    Update,
    label_of,
)
from partita.runs.fingerprint import identity_of
from partita.runs.journal import Commit, Record
from partita.server.round import Outcome, ask, run_round
from partita.server.sampling import sample_cohort
from partita.tasks.task import Task
from partita.training.evaluation import (
    MODEL_OF,
    Pretrained,
    Row,
    Summary,
    columns_of,
    rows_of,
    served,
    summarize,
    weighted_mean,
)
from partita.training.plan import Plan, Turn
from partita.training.stages import Scene, Stages

logger = logging.getLogger(__name__)

_MOST_UNHEARD = 10
"""Training rounds in a row without a reply, after which a run is given up."""

Watch = Callable[[Row, int, int], None]
"""Told of every round: its line in `rounds.jsonl`, how many rounds are done, how many there are.

The line has more than the file: `rounds`, how many the stage has; and of an evaluation after pretraining
`helped`, `hurt` and `same`, which count its devices against the pretrained model.
"""


class Pipeline:
    """A run of a plan, written down in a record.

    Args:
        task: what is learned.
        partition: how the model is split after pretraining.
        plan: the stages.
        seed: all randomness derives from it.
        record: where the run is written down.
        name: what orders call the run.
    """

    def __init__(
        self,
        task: Task,
        partition: Partition,
        plan: Plan,
        *,
        seed: int,
        record: Record,
        name: str = "run",
    ) -> None:
        plan.check(len(task.devices))
        self.task = task
        self.plan = plan
        self.seed = seed
        self.record = record
        self.name = name
        self._stages = Stages(task, partition, plan, seed=seed, record=record)
        visitor = Visitor(task, self._stages.roles(), record.store, seed=seed)
        self._executor: Executor = SerialExecutor(visitor)
        self._devices = self._executor.devices()
        self._identity = identity_of(task, partition, plan, seed=seed)
        self._heard = False
        self._unheard = 0
        self._reason = "`rounds.jsonl` says why."
        positions = plan.evaluate.positions(len(self._devices), seed=seed)
        self._evaluated: Sequence[DeviceId] = (
            self._devices
            if plan.evaluate.devices == "all"
            else [self._devices[position] for position in positions]
        )

    def run(self, watch: Watch | None = None) -> Summary:
        """Do every round that is not committed yet, and return the summary."""
        last = self.record.last()
        if last is not None:
            self._check_same(last)
        if (summary := self.record.summary()) is not None:
            return summary
        if last is not None:
            self._executor.close(last.label, last.counted)
        turns = list(self.plan.turns(len(self._evaluated)))
        rounds = Counter(turn.stage for turn in turns if turn.work != "evaluate")
        scene: Scene | None = None
        for number, turn in enumerate(turns):
            if last is not None and number <= last.number:
                continue
            if scene is None or scene.stage is not turn.stage:
                goes_on = scene is None and last is not None and last.stage == turn.stage
                scene = self._stages.open(turn.stage, self.record.state() if goes_on else None)
                self._heard = last.heard if goes_on and last is not None else False
            scene, line, rows = self._take(scene, turn, number)
            if watch is not None:
                told = {**line, "rounds": rounds[turn.stage], **self._against_pretrained(turn, rows)}
                watch(told, number + 1, len(turns))
            self._check_heard(turn, line)
        if turns[-1].stage is Stage.PRETRAINED:
            self._stages.open(Stage.FINETUNED)
        all_rows = partial(self._all_rows, len(self._evaluated))
        split = self.plan.evaluate.split
        summary = summarize(all_rows(), self.task, devices=len(self._evaluated), split=split)
        self.record.finish(columns_of(self.task), all_rows(), summary)
        return summary

    def _all_rows(self, devices: int) -> Iterator[Row]:
        """Yield the rows of every stage, with those of the models that devices serve where they choose."""
        yield from self.record.rows()
        if self.plan.evaluate.choose:
            yield from served(self.record.rows, self.task, devices=devices)

    @cached_property
    def _pretrained(self) -> Pretrained:
        """What later stages are compared with, once it has been evaluated."""
        devices, split = len(self._evaluated), self.plan.evaluate.split
        return Pretrained(self.record.rows(), self.task, devices=devices, split=split)

    def _against_pretrained(self, turn: Turn, rows: Sequence[Row]) -> dict[str, int]:
        """Return how many devices were helped and hurt, where a round evaluates that."""
        is_later = turn.work == "evaluate" and turn.stage is not Stage.PRETRAINED
        return self._pretrained.against(rows) if is_later else {}

    def _take(self, scene: Scene, turn: Turn, number: int) -> tuple[Scene, Row, Sequence[Row]]:
        """Do one round and commit it; return what it led to, its line and its rows."""
        begin = time.perf_counter()
        if turn.final and turn.block.start == 0:
            self._end_training(scene)
        orders = self._orders(scene, turn)
        if turn.work == "update":
            state, outcome = run_round(scene.state, orders, self._executor, scene.server)
        else:
            state, outcome = scene.state, ask(orders, self._executor)
        self._heard |= turn.work == "update" and bool(outcome.replies)
        rows = self._rows(turn, outcome)
        line = {
            **_line(turn, orders, outcome),
            **_measured(rows, self.plan.evaluate.split),
            "seconds": round(time.perf_counter() - begin, 4),
        }
        moved = [] if turn.work == "evaluate" else outcome.heard
        label = label_of(turn.stage, turn.round)
        commit = Commit(
            number=number,
            stage=turn.stage,
            round=turn.round,
            label=label,
            counted=moved,
            heard=self._heard,
            identity=self._identity,
        )
        self.record.commit(commit, state, line, rows if turn.final else [])
        self._executor.close(label, moved)
        return replace(scene, state=state), line, rows

    def _end_training(self, scene: Scene) -> None:
        """Keep what a stage's training leaves behind, unless there was none."""
        if self.plan.training(scene.stage) and not self._heard:
            raise RunFailed(f"No device was heard in any round of `{scene.stage}`: {self._reason}")
        if scene.stage is not Stage.FINETUNED:
            self.record.save_shared(scene.stage, scene.left_behind)

    def _check_same(self, last: Commit) -> None:
        """Raise where a record was begun by another run than this one."""
        other = [name for name, text in self._identity.items() if last.identity.get(name) != text]
        if other:
            raise ConfigError(
                f"The run to go on with was begun with other values of {', '.join(f'`{n}`' for n in other)}: "
                "go on with the same ones, or begin a new run."
            )

    def _check_heard(self, turn: Turn, line: Row) -> None:
        """Warn of a training round in which all devices failed; too many of them end the run."""
        if turn.work != "update":
            return
        self._unheard = 0 if line["heard"] else self._unheard + 1
        if not self._unheard:
            return
        self._reason = next(iter(line["failed"].values()), self._reason)
        if self._unheard == 1:
            logger.warning(
                "No device was heard in round %d of `%s`: %s", turn.round, turn.stage, self._reason
            )
        if self._unheard == _MOST_UNHEARD:
            raise RunFailed(
                f"No device was heard in {_MOST_UNHEARD} rounds of `{turn.stage}`: {self._reason} "
                "Where losses diverge, lower learning rates or `max_grad_norm` help."
            )

    def _orders(self, scene: Scene, turn: Turn) -> list[Order]:
        work = self._work(turn)
        shared = scene.state.shared if isinstance(work, Update) else scene.shared
        return [
            Order(
                run=self.name,
                stage=turn.stage,
                round=turn.round,
                device=device,
                work=work,
                shared=shared,
                start=self._stages.start_of(turn.stage, device),
            )
            for device in self._asked(turn)
        ]

    def _asked(self, turn: Turn) -> Sequence[DeviceId]:
        training = self.plan.training(turn.stage)
        if turn.work != "update" or training is None:
            return self._evaluated[turn.block.start : turn.block.stop]
        cohort = sample_cohort(
            len(self._devices),
            training.devices_per_round,
            seed=self.seed,
            stage=turn.stage,
            round=turn.round,
        )
        return [self._devices[position] for position in cohort]

    def _work(self, turn: Turn) -> Update | Finetune | Evaluate:
        training = self.plan.training(turn.stage)
        if turn.work == "update" and training is not None:
            return training.method.update.scaled(training.schedule(turn.round, training.rounds))
        if turn.work == "finetune" and self.plan.finetune is not None:
            return self.plan.finetune.work
        judged = self.plan.evaluate.split
        splits = dict.fromkeys(("train", "validation", judged)) if turn.final else (judged,)
        return Evaluate(model=MODEL_OF[turn.stage], splits=tuple(splits))

    def _rows(self, turn: Turn, outcome: Outcome) -> list[Row]:
        if turn.work != "evaluate":
            return []
        positions = dict(zip(outcome.asked, turn.block, strict=True))
        return [
            {**row, "position": positions[device]}
            for device, metrics in outcome.metrics()
            for row in rows_of(self.task, turn.stage, device, metrics)
        ]


def _line(turn: Turn, orders: Sequence[Order], outcome: Outcome) -> dict[str, Any]:
    """Return what `rounds.jsonl` says of a round."""
    work, start = orders[0].work, orders[0].start
    return {
        "stage": turn.stage,
        "work": turn.work,
        "round": turn.round,
        "final": turn.final,
        "loss": None if turn.work == "evaluate" else outcome.loss,
        "personal_lr": None if isinstance(work, Evaluate) or not start.personal else _rate(work.personal),
        "shared_lr": _rate(work.shared) if isinstance(work, Update) else None,
        "asked": list(outcome.asked),
        "heard": outcome.heard,
        "failed": outcome.failed,
        "bytes": {"down": outcome.bytes_down, "up": outcome.bytes_up},
    }


def _rate(pace: Pace) -> float | None:
    return pace.lr if pace.epochs or pace.steps else None


def _measured(rows: Sequence[Row], split: str) -> dict[str, float]:
    """Return the loss and the headline metric on the rows that an evaluation judges by, by weight."""
    means: dict[str, float] = {}
    for name in ("loss", "metric"):
        known = [row for row in rows if row["split"] == split and row[name] is not None and row["weight"]]
        if known:
            means[name] = weighted_mean((r[name] for r in known), (r["weight"] for r in known))
            means["weight"] = sum(row["weight"] for row in known)
    return means
