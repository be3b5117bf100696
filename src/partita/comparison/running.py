"""Doing the cells of a comparison: each is a run's folder, begun from its seed's pretrained model.

Several processes may share one comparison. A process that takes a cell holds its lock file; others leave
that cell to it. So a comparison that was ended anywhere goes on from there, cell by cell and round by round.
"""

import contextlib
import copy
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from partita import runner, tuning
from partita.comparison.grid import START, Cell, cells_of
from partita.comparison.search import space_of
from partita.config.building import build, data_files
from partita.config.imports import find_code, made_with
from partita.config.reading import config_of, read_values
from partita.durable import replace_file
from partita.errors import ConfigError, RunFailed
from partita.evaluation import Row
from partita.protocol import Stage
from partita.stages.pipeline import Pipeline
from partita.stages.plan import Evaluation, Plan
from partita.stages.record import MemoryRecord

Tick = Callable[[int, int, str], None]
"""Told how much is done, of how much, and what is being done."""
_PAUSE = 1.0
"""Seconds between looks at cells that other processes are doing."""
_PROBED = 3
"""Devices that are visited to tell how long a cell takes."""


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: Path
    values: Mapping[str, Any]
    """Its config, with files named from its folder."""
    cells: Sequence[Cell]

    def folder_of(self, cell: Cell) -> Path:
        """Return the folder of a cell's run."""
        return self.folder / "cells" / cell.name

    def start_of(self, cell: Cell) -> Cell:
        """Return the cell that pretrains for another."""
        return next(other for other in self.cells if other.seed == cell.seed and other.method == START)

    def prepared(self, cell: Cell) -> runner.Prepared:
        """Return a cell's run, new or to go on with."""
        folder = self.folder_of(cell)
        if runner.is_begun(folder):
            return runner.reopen(folder)
        shutil.rmtree(folder, ignore_errors=True)
        start = None
        if cell.begins_pretrained:
            start = self.folder_of(self.start_of(cell)) / "shared" / f"{Stage.PRETRAINED}.safetensors"
        return runner.prepare(self._tuned(cell).config(out=folder, start=start), self.folder)

    def tuned_file(self, cell: Cell) -> Path:
        """Return where the values are that a cell's method was tuned to."""
        return self.folder / "tuned" / f"{cell.kind}.json"

    def _tuned(self, cell: Cell) -> Cell:
        """Return a cell with the values that its method was tuned to, where it was."""
        path = self.tuned_file(cell)
        if not path.exists():
            return cell
        values = copy.deepcopy(dict(cell.values))
        tuning.put(values, json.loads(path.read_bytes()))
        return replace(cell, values=values)


def begin(values: Mapping[str, Any], beside: Path) -> Comparison:
    """Return a new comparison, in a folder of its own; files that it names are looked for `beside` it."""
    config = config_of(values)
    find_code(config, beside)
    devices = len(build(replace(config, compare=type(config.compare)()), beside).task.devices)
    cells = cells_of(values, devices=devices)
    for cell in _kinds(cells):
        _checked(cell, beside)
    folder = runner.claim(config, f"{config.name}-compare")
    (folder / "cells").mkdir()
    settled = _from_folder(values, beside, folder) | {"devices_in_all": devices}
    replace_file(folder / "config.toml", tomli_w.dumps(settled).encode())
    return reopen(folder)


def reopen(folder: Path) -> Comparison:
    """Return the comparison in a folder, to go on with it."""
    path = folder / "config.toml"
    if not path.is_file() or "devices_in_all" not in (values := read_values(path)):
        raise ConfigError(f"`{folder}` holds no comparison to go on with.")
    devices = values.pop("devices_in_all")
    find_code(config_of(values), folder)
    return Comparison(folder, values, cells_of(values, devices=devices))


def _kinds(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the first seed: the others differ in nothing but it."""
    return [cell for cell in cells if cell.seed == cells[0].seed]


def _checked(cell: Cell, beside: Path) -> runner.Prepared:
    """Return a cell's run without a folder, built to see that it can be."""
    config = cell.config(out=Path())
    try:
        return runner.Prepared(config, build(config, beside), Path())
    except ConfigError as error:
        raise ConfigError(f"{cell.title or 'The start'} {cell.partition}: {error}") from error


def _from_folder(values: Mapping[str, Any], beside: Path, folder: Path) -> dict[str, Any]:
    """Return values with files named from the comparison's folder, and what it was made with."""
    config, folder = config_of(values), folder.resolve()
    files = {k: os.path.relpath(p.resolve(), folder) for k, p in data_files(config, beside).items()}
    settled = {**values, "task": {**values.get("task", {}), **files}}
    if config.model.start:
        start = os.path.relpath((beside / config.model.start).resolve(), folder)
        settled["model"] = {**values["model"], "start": start}
    settled["made_with"] = made_with(config, folder)
    settled.pop("out", None)
    return settled


def finish(comparison: Comparison, tick: Tick) -> dict[str, str]:
    """Do all cells that are left, with other processes where there are any; return why any of them failed."""
    failed: dict[str, str] = {}
    if trials := config_of(comparison.values).compare.tune:
        _tune_all(comparison, trials, tick)
    while left := [cell for cell in comparison.cells if not _is_over(comparison, cell, failed)]:
        if not sum(_try(comparison, cell, failed, tick) for cell in left):
            time.sleep(_PAUSE)
    return failed


def _try(comparison: Comparison, cell: Cell, failed: dict[str, str], tick: Tick) -> bool:
    """Do a cell whose turn it is, unless another process does it, and return whether it was done."""
    if cell.begins_pretrained:
        start = comparison.start_of(cell)
        if start.name in failed:
            failed[cell.name] = "its start failed"
        if not runner.is_finished(comparison.folder_of(start)):
            return False
    with _held(comparison.folder / "cells" / f"{cell.name}.lock") as is_ours:
        if not is_ours or runner.is_finished(comparison.folder_of(cell)):
            return False
        try:
            runner.finish(comparison.prepared(cell), _watching(comparison, cell, tick))
        except RunFailed as error:
            failed[cell.name] = str(error)
        return True


def _tune_all(comparison: Comparison, trials: int, tick: Tick) -> None:
    """Tune every method on the first seed, each with as many trials."""
    (comparison.folder / "tuned").mkdir(exist_ok=True)
    kinds = [cell for cell in _kinds(comparison.cells) if cell.method != START]
    while left := [cell for cell in kinds if not comparison.tuned_file(cell).exists()]:
        if not sum(_tune(comparison, cell, trials, tick) for cell in left):
            time.sleep(_PAUSE)


def _tune(comparison: Comparison, cell: Cell, trials: int, tick: Tick) -> bool:
    """Tune one method, unless another process does, and return whether it was done."""
    path = comparison.tuned_file(cell)
    with _held(path.with_suffix(".lock")) as is_ours:
        if not is_ours or path.exists():
            return False
        folder = path.with_suffix("")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        ground = tuning.Ground(values=cell.values, beside=comparison.folder, folder=folder)
        space = space_of(cell.config(out=folder))

        def told(done: int, total: int, text: str) -> None:
            tick(done, total, f"tuning {cell.kind}: {text}")

        best = tuning.tune(ground, space, trials=trials, tick=told).best
        replace_file(path, json.dumps(dict(best.choice), indent=1).encode())
        return True


def _is_over(comparison: Comparison, cell: Cell, failed: Mapping[str, str]) -> bool:
    return cell.name in failed or runner.is_finished(comparison.folder_of(cell))


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock file for a while, and say whether it was free."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(lock)


def _watching(comparison: Comparison, cell: Cell, tick: Tick) -> Callable[[Row, int, int], None]:
    """Return what tells of a cell's rounds as part of the whole."""
    over = sum(runner.is_finished(comparison.folder_of(other)) for other in comparison.cells)

    def watch(line: Row, done: int, total: int) -> None:
        share = f"{cell.name}, {100 * done // total} %"
        tick(over, len(comparison.cells), share)

    return watch


@dataclass(frozen=True)
class Expected:
    """What a cell would take."""

    cell: Cell
    seconds: float


def expected(values: Mapping[str, Any], beside: Path) -> list[Expected]:
    """Return the cells of a comparison and how long each takes, by a few visits of each kind of cell."""
    config = config_of(values)
    find_code(config, beside)
    devices = len(build(config, beside).task.devices)
    cells = cells_of(values, devices=devices)
    times = {cell.row: _seconds_of(_checked(cell, beside), cell) for cell in _kinds(cells)}
    return [Expected(cell, times[cell.row]) for cell in cells]


def _seconds_of(run: runner.Prepared, cell: Cell) -> float:
    """Return how long a run takes, from one round of each kind with a few devices."""
    plan, task = run.built.plan, run.built.task
    probed = min(_PROBED, len(task.devices))
    short = Plan(
        pretrain=plan.pretrain
        and replace(plan.pretrain, rounds=min(1, plan.pretrain.rounds), devices_per_round=probed),
        personalise=plan.personalise
        and replace(plan.personalise, rounds=min(1, plan.personalise.rounds), devices_per_round=probed),
        finetune=plan.finetune,
        evaluate=Evaluation(devices=probed),
    )
    record = MemoryRecord()
    Pipeline(task, run.built.partition, short, seed=run.config.seed, record=record).run()
    evaluated = plan.evaluate.devices or len(task.devices)
    seconds = 0.0
    for line in record.lines:
        each = line["seconds"] / probed
        training = plan.training(Stage(line["stage"]))
        if line["work"] == "update" and training:
            skipped = cell.begins_pretrained and line["stage"] == Stage.PRETRAINED
            seconds += 0 if skipped else each * training.rounds * training.devices_per_round
        else:
            seconds += each * evaluated
    return seconds


def journal_of(folder: Path) -> Iterator[Row]:
    """Yield what `rounds.jsonl` of a run's folder says."""
    with (folder / "rounds.jsonl").open() as lines:
        yield from map(json.loads, lines)
