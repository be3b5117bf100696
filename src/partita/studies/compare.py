"""Doing the cells of a comparison: each is a run's folder, begun from its seed's pretrained model.

Several processes may share one comparison. A process that takes a cell holds its lock file; others leave
that cell to it. So a comparison that was ended anywhere goes on from there, cell by cell and round by round.
"""

import contextlib
import copy
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build
from partita.config.imports import COMMAND, find_code, made_with, own_code
from partita.config.reading import read_values
from partita.config.tasks import build_task, data_files
from partita.durable import locked, replace_file
from partita.errors import ConfigError, RunFailed
from partita.models.parts import partition_names
from partita.progress.bar import Tick
from partita.progress.watchers import nobody, within
from partita.protocol import Stage
from partita.report.sheets import write_sheets
from partita.runs.folder import RunFolder
from partita.studies import run as runner
from partita.studies.cells import START, Cell, base_of, cells_of, check
from partita.studies.search import space_of
from partita.studies.search_space import put
from partita.studies.trials import trials_sheet
from partita.studies.tune import Ground, check_trial, pretrain, tune
from partita.tasks.build import build_model
from partita.training.evaluation import DeviceRow as Row
from partita.training.pipeline import RoundCallback as Watch

_CELLS, _TUNED = "cells", "tuned"
"""The folders of a comparison."""
_PAUSE = 1.0
"""Seconds between looks at cells that other processes are doing."""


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: Path
    values: Mapping[str, Any]
    """Its config, with files named from its folder."""
    cells: Sequence[Cell]

    def folder_of(self, cell: Cell) -> Path:
        """Return the folder of a cell's run."""
        return self.folder / _CELLS / cell.name

    def start_of(self, cell: Cell) -> Cell:
        """Return the cell that pretrains for another."""
        return next(other for other in self.cells if other.seed == cell.seed and other.method == START)

    def prepared(self, cell: Cell) -> runner.Prepared:
        """Return a cell's run, new or to go on with."""
        start = None
        if cell.begins_pretrained:
            start = pretrained_in(self.folder_of(self.start_of(cell)))
        return runner.prepare_or_resume(
            self._tuned(cell).config(out=self.folder_of(cell), start=start), self.folder
        )

    def failure_file(self, cell: Cell) -> Path:
        """Return where it is written why a cell failed; without that file it is tried again."""
        return self.folder / _CELLS / f"{cell.name}.failed"

    def why_failed(self, cell: Cell) -> str:
        """Return why a cell failed, nothing where it did not."""
        with contextlib.suppress(FileNotFoundError):
            return self.failure_file(cell).read_text()
        return "its start failed" if cell.begins_pretrained and self.why_failed(self.start_of(cell)) else ""

    def failed(self) -> dict[str, str]:
        """Return why cells failed, by name."""
        return {cell.name: reason for cell in self.cells if (reason := self.why_failed(cell))}

    def is_over(self, cell: Cell) -> bool:
        """Return whether there is nothing left to do of a cell."""
        return RunFolder(self.folder_of(cell)).is_finished or bool(self.why_failed(cell))

    def tuned_file(self, cell: Cell) -> Path:
        """Return where the values are that a cell's method was tuned to."""
        return self.folder / _TUNED / f"{cell.kind}.json"

    def tuned_to(self, cell: Cell) -> Mapping[str, Any]:
        """Return the values that a cell's method was tuned to, none where it was not."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.tuned_file(cell).read_bytes())
        return {}

    def _tuned(self, cell: Cell) -> Cell:
        """Return a cell with the values that its method was tuned to."""
        values = copy.deepcopy(dict(cell.values))
        put(values, self.tuned_to(cell))
        return replace(cell, values=values)


def begin(values: Mapping[str, Any], beside: Path, command: str = "") -> Comparison:
    """Return a new comparison, in a folder of its own.

    Args:
        values: its config.
        beside: where files that it names are looked for.
        command: what was typed to ask for it, kept with it.
    """
    config = base_of(values)
    cells = cells_in(values, beside)
    for cell in kinds(cells):
        checked(cell, beside)
        if config.compare.tune and cell.method != START:
            check_trial(cell.values, beside)
    folder = runner.claim(config, f"{config.name}-compare")
    (folder / _CELLS).mkdir()
    settled = _from_folder(values, cells, beside, folder)
    settled["made_with"] |= {COMMAND: command} if command else {}
    replace_file(folder / "config.toml", tomli_w.dumps(settled).encode())
    return reopen(folder)


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / "config.toml").is_file() and (folder / _CELLS).is_dir()


def reopen(folder: Path) -> Comparison:
    """Return the comparison in a folder, to go on with it."""
    if not is_comparison(folder):
        raise ConfigError(f"`{folder}` holds no comparison to go on with.")
    values = read_values(folder / "config.toml")
    return Comparison(folder, values, cells_in(values, folder))


def cells_in(values: Mapping[str, Any], beside: Path) -> list[Cell]:
    """Return the cells of a comparison; files that it names are looked for `beside` it."""
    config = base_of(values)
    check(config.compare)
    find_code(config, beside)
    task, _ = build_task(config, beside)
    with own_code("The model"):
        parts = partition_names(build_model(task, seed=config.seed))
    return cells_of(values, devices=len(task.devices), parts=parts)


def kinds(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the first seed: the others differ in nothing but it."""
    return [cell for cell in cells if cell.seed == cells[0].seed]


def checked(cell: Cell, beside: Path) -> runner.Prepared:
    """Return a cell's run without a folder, built to see that it can be."""
    try:
        config = cell.config(out=Path())
        return runner.Prepared(config, build(config, beside), RunFolder(Path()))
    except ConfigError as error:
        what = " ".join(filter(None, (cell.title or "The start", cell.partition)))
        raise ConfigError(f"{what}: {error}") from error


def _from_folder(
    values: Mapping[str, Any], cells: Sequence[Cell], beside: Path, folder: Path
) -> dict[str, Any]:
    """Return values with files named from the comparison's folder, and what it was made with."""
    config, folder = base_of(values), folder.resolve()
    files = {k: os.path.relpath(p.resolve(), folder) for k, p in data_files(config, beside).items()}
    settled = {**values, "task": {**values.get("task", {}), **files}}
    if config.model.start:
        start = os.path.relpath((beside / config.model.start).resolve(), folder)
        settled["model"] = {**values["model"], "start": start}
    settled["made_with"] = made_with(config, folder, *(cell.config(out=folder) for cell in kinds(cells)))
    settled.pop("out", None)
    return settled


def pretrained_in(folder: Path) -> Path:
    """Return the file with the model that a run has pretrained."""
    return RunFolder(folder).shared_file(Stage.PRETRAINED).resolve()


def finish(comparison: Comparison, tick: Tick, told: Watch = nobody) -> dict[str, str]:
    """Do all cells that are left, with other processes where there are any; return why any of them failed.

    Args:
        comparison: what to do.
        tick: told of progress.
        told: told of every round that this process does, and of which cell it is.
    """
    progress = _Progress(comparison, tick, told)
    if trials := base_of(comparison.values).compare.tune:
        _tune_all(comparison, trials, progress)
    while left := [cell for cell in comparison.cells if not comparison.is_over(cell)]:
        if not sum(_try(comparison, cell, progress) for cell in left):
            time.sleep(_PAUSE)
    return comparison.failed()


def _try(comparison: Comparison, cell: Cell, progress: "_Progress") -> bool:
    """Do a cell whose turn it is, unless another process does it, and return whether it was done."""
    if cell.begins_pretrained and not RunFolder(comparison.folder_of(comparison.start_of(cell))).is_finished:
        return False
    with locked(comparison.folder / _CELLS / f"{cell.name}.lock") as is_ours:
        if not is_ours or comparison.is_over(cell):
            return False
        try:
            runner.finish(comparison.prepared(cell), progress.of(cell))
        except RunFailed as error:
            replace_file(comparison.failure_file(cell), str(error).encode())
        return True


def _tune_all(comparison: Comparison, trials: int, progress: "_Progress") -> None:
    """Tune every method on the first seed, each with as many trials."""
    (comparison.folder / _TUNED).mkdir(exist_ok=True)
    while left := [cell for cell in progress.tuned if not comparison.tuned_file(cell).exists()]:
        if not sum(_tune(comparison, cell, trials, progress) for cell in left):
            time.sleep(_PAUSE)


def _tune(comparison: Comparison, cell: Cell, trials: int, progress: "_Progress") -> bool:
    """Tune one method, unless another process does, and return whether it was done."""
    path = comparison.tuned_file(cell)
    with locked(path.with_suffix(".lock")) as is_ours:
        if not is_ours or path.exists():
            return False
        best: Mapping[str, Any] = {}
        try:
            best = _best(comparison, cell, trials, progress)
        except RunFailed as error:
            for other in comparison.cells:
                if other.row == cell.row:
                    replace_file(comparison.failure_file(other), f"Tuning: {error}".encode())
        replace_file(path, json.dumps(dict(best), indent=1).encode())
        return True


def _best(comparison: Comparison, cell: Cell, trials: int, progress: "_Progress") -> Mapping[str, Any]:
    """Return the values that a method is tuned to, and write all that were tried beside them."""
    folder = comparison.tuned_file(cell).with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tick = progress.part(f"tuning {cell.kind}")
    start = _start_of_trials(comparison, cell, tick, progress.told) if cell.begins_pretrained else None
    ground = Ground(values=cell.values, beside=comparison.folder, folder=folder, start=start)
    told = within(progress.told, f"{_TUNED}/{cell.kind}")
    tuned = tune(ground, space_of(cell.config(out=folder), trials), trials=trials, tick=tick, told=told)
    write_sheets([trials_sheet(tuned)], folder)
    return tuned.best.choice


def _start_of_trials(comparison: Comparison, cell: Cell, tick: Tick, told: Watch) -> Path:
    """Return the model that all methods' trials begin from, pretrained without the validation rows."""
    folder = comparison.folder / _TUNED
    values = comparison.start_of(cell).values
    ground = Ground(values=values, beside=comparison.folder, folder=folder)
    with locked(folder / "start.lock", wait=True):
        return pretrain(ground, tick, within(told, _TUNED))


@dataclass(frozen=True)
class _Progress:
    """Tells of rounds and trials as parts of a whole comparison."""

    comparison: Comparison
    tick: Tick
    told: Watch

    @cached_property
    def tuned(self) -> list[Cell]:
        """The cells whose methods are tuned beforehand."""
        wanted = base_of(self.comparison.values).compare.tune
        return [cell for cell in kinds(self.comparison.cells) if cell.method != START] if wanted else []

    def part(self, name: str) -> Tick:
        """Return what tells of one cell, or of one method's tuning."""
        tuned = sum(self.comparison.tuned_file(cell).exists() for cell in self.tuned)
        over = tuned + sum(self.comparison.is_over(cell) for cell in self.comparison.cells)
        whole = len(self.tuned) + len(self.comparison.cells)
        return lambda done, total, text: self.tick(over + done / total, whole, f"{name}, {text}")

    def of(self, cell: Cell) -> Watch:
        """Return what tells of the rounds of one cell."""
        tick, told = self.part(cell.name), within(self.told, f"{_CELLS}/{cell.name}")

        def watch(line: Row, done: int, total: int) -> None:
            told(line, done, total)
            tick(done, total, f"{100 * done // total} %")

        return watch
