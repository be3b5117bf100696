"""How long a comparison takes, from a few visits of each kind of cell; nothing is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.errors import RunFailed
from partita.protocol import Stage
from partita.runs.journal import MemoryRecord
from partita.studies import run as runner
from partita.studies.cells import START, Cell, base_of
from partita.studies.compare import cells_in, checked, kinds
from partita.training.evaluation import Row
from partita.training.loop import Pipeline
from partita.training.plan import Evaluation, Plan, Training

_PROBED = 3
"""Devices that are visited to tell how long a cell takes."""


@dataclass(frozen=True)
class Expected:
    """What a cell would take."""

    cell: Cell
    seconds: float | None
    """None where the few visits failed."""


@dataclass(frozen=True)
class Forecast:
    """What a comparison would take."""

    cells: Sequence[Expected]
    trials: int
    """How many each method is tuned with beforehand."""

    @property
    def seconds(self) -> float:
        """Of all cells."""
        return sum(each.seconds or 0.0 for each in self.cells)

    @property
    def tuning(self) -> float:
        """Seconds of all trials, and of what they begin from."""
        first = [each for each in self.cells if each.cell.seed == self.cells[0].cell.seed]
        rounds = [(each.seconds or 0.0) * (self.trials if each.cell.method != START else 1) for each in first]
        return sum(rounds) if self.trials else 0.0


def forecast(values: Mapping[str, Any], beside: Path) -> Forecast:
    """Return the cells of a comparison, and how long each takes."""
    cells = cells_in(values, beside)
    times = {cell.row: _seconds_of(checked(cell, beside), cell) for cell in kinds(cells)}
    return Forecast([Expected(cell, times[cell.row]) for cell in cells], base_of(values).compare.tune)


def _seconds_of(run: runner.Prepared, cell: Cell) -> float | None:
    """Return how long a run takes, from one round of each kind with a few devices."""
    plan, task = run.built.plan, run.built.task
    probed = min(_PROBED, len(task.devices))
    short = Plan(
        pretrain=_short(plan.pretrain, probed),
        personalize=_short(plan.personalize, probed),
        finetune=plan.finetune and replace(plan.finetune, epochs=min(1, plan.finetune.epochs)),
        evaluate=Evaluation(devices=probed, split=plan.evaluate.split),
    )
    record = MemoryRecord()
    try:
        Pipeline(task, run.built.partition, short, seed=run.config.seed, record=record).run()
    except RunFailed:
        return None
    evaluated = len(plan.evaluate.positions(len(task.devices), seed=run.config.seed))
    return sum(line["seconds"] / probed * _visits(line, plan, cell, evaluated) for line in record.lines)


def _short(training: Training | None, probed: int) -> Training | None:
    return training and replace(training, rounds=min(1, training.rounds), devices_per_round=probed)


def _visits(line: Row, plan: Plan, cell: Cell, evaluated: int) -> int:
    """Return how many visits a whole run has for each one that a line of a short run tells of."""
    skipped = cell.begins_pretrained and line["stage"] == Stage.PRETRAINED
    training = None if skipped else plan.training(Stage(line["stage"]))
    if line["work"] == "update":
        return training.rounds * training.devices_per_round if training else 0
    if line["work"] == "finetune":
        return evaluated * plan.finetune.epochs if plan.finetune else 0
    every = plan.evaluate.every
    looks = (training.rounds - 1) // every if training and every else 0
    return evaluated * (1 + looks)
