"""The expected time of a comparison, from a few visits of each method; nothing is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partita.config.building import build_execution, check_machine
from partita.device.store import MemoryStore
from partita.errors import RunFailed, described
from partita.protocol import Stage
from partita.runs.memory import MemoryJournal
from partita.studies import run as runner
from partita.studies.begin import cells_in, check_cell, methods_of
from partita.studies.cells import START, Cell, base_of
from partita.studies.comparison import first_seed
from partita.studies.local import local_executor
from partita.training.journal import RoundRow
from partita.training.pipeline import Pipeline
from partita.training.plan import Evaluation, Plan, Training

_PROBED = 3
"""Number of devices that are visited to measure the time of a cell."""


@dataclass(frozen=True)
class Expected:
    """The expected time of a cell."""

    cell: Cell
    seconds: float | None
    """Its processor time; None if the visits failed."""


@dataclass(frozen=True)
class Forecast:
    """The expected time of a comparison."""

    cells: Sequence[Expected]
    trials: int
    """Number of trials with which each method is tuned first."""
    titles: Mapping[str, str]
    """The methods' names in tables."""
    notes: Sequence[str]
    """The personal parts that are left out or the same as others."""
    workers: int = 1
    """Number of cells at a time."""

    @property
    def seconds(self) -> float:
        """Processor time of all cells."""
        return sum(each.seconds or 0.0 for each in self.cells)

    @property
    def tuning(self) -> float:
        """Processor time of all trials and of their pretraining."""
        first = [each for each in self.cells if each.cell.seed == self.cells[0].cell.seed]
        rounds = [(each.seconds or 0.0) * (self.trials if each.cell.method != START else 1) for each in first]
        return sum(rounds) if self.trials else 0.0


def forecast(values: Mapping[str, Any], beside: Path) -> Forecast:
    """Return the cells of a comparison with the expected time of each."""
    check_machine(base_of(values))
    cells, notes = cells_in(values, beside)
    times = {cell.row: _seconds_of(check_cell(cell, beside), cell) for cell in first_seed(cells)}
    titles = {name: method.title for name, method in methods_of(cells).items()}
    expected = [Expected(cell, times[cell.row]) for cell in cells]
    base = base_of(values)
    workers = build_execution(base).processes
    return Forecast(expected, base.compare.tune, titles, notes, workers)


def _seconds_of(run: runner.Prepared, cell: Cell) -> float | None:
    """Return the expected time of a run, from one round of each kind with a few devices."""
    plan, task = run.built.plan, run.built.task
    probed = min(_PROBED, len(task.devices))
    short = Plan(
        pretrain=_short(plan.pretrain, probed),
        personalize=_short(plan.personalize, probed),
        finetune=plan.finetune and replace(plan.finetune, epochs=min(1, plan.finetune.epochs)),
        evaluate=Evaluation(devices=probed, split=plan.evaluate.split),
    )
    journal, store = MemoryJournal(), MemoryStore()
    own, seed = run.built.personalization, run.config.seed
    execution = replace(run.built.execution, workers=1)
    try:
        with local_executor(task, own, short, store, seed=seed, execution=execution) as executor:
            Pipeline(task, own, short, seed=seed, executor=executor, journal=journal).run()
    except RunFailed:
        return None
    except Exception as error:
        raise RunFailed(f"{cell.name}, in a short trial: {described(error)}.") from error
    seen, unseen = plan.evaluate.divide(task.devices.ids)
    counts = len(plan.evaluate.positions(len(seen), seed=seed)), len(unseen) if plan.evaluate.onboards else 0
    return sum(line["seconds"] / probed * _visits(line, plan, cell, *counts) for line in journal.rounds())


def _short(training: Training | None, probed: int) -> Training | None:
    return training and replace(
        training, rounds=min(1, training.rounds), devices_per_round=probed, over_select=0, patience=0
    )


def _visits(line: RoundRow, plan: Plan, cell: Cell, evaluated: int, unseen: int) -> int:
    """Return the number of visits in the whole run that a round of the short run stands for."""
    skipped = cell.begins_pretrained and line["stage"] == Stage.PRETRAINED
    training = None if skipped else plan.training(Stage(line["stage"]))
    if line["work"] == "update":
        return training.rounds * training.asked if training else 0
    if line["work"] == "finetune":
        return (evaluated + unseen) * plan.finetune.epochs if plan.finetune else 0
    rounds = range(1, training.rounds + 1) if training else ()
    during_training = [n for n in rounds if training and training.evaluates_after(n, plan.evaluate.every)]
    return evaluated + unseen + len(during_training) * plan.evaluate.sample_size(evaluated)
