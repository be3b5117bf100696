"""Doing the cells of a comparison: each is a run's folder, begun from its seed's pretrained model.

Several processes may share one comparison. A process that takes a cell holds its lock file; others leave
that cell to it. So a comparison that was ended anywhere goes on from there, cell by cell and round by round.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build
from partita.config.changes import with_values
from partita.config.imports import own_code
from partita.config.provenance import COMMAND, find_code, made_with
from partita.config.reading import read_values
from partita.config.schema import Config
from partita.config.tasks import build_task, data_files
from partita.durable import held, replace_file
from partita.errors import ConfigError, RunFailed
from partita.methods import registry
from partita.methods.named import Citation
from partita.models.parts import partition_names
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore, labeled
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.server import registry as servers
from partita.studies import run as runner
from partita.studies.cells import START, STATELESS, Cell, base_of, cells_of, check, named, titles_of
from partita.studies.search import space_of
from partita.studies.trials import Tuned, trials_from
from partita.studies.tune import Ground, check_trial, pretrain, tune
from partita.tasks.build import build_model
from partita.training.evaluation import Row
from partita.training.loop import Watch

_CELLS, _TUNED = "cells", "tuned"
"""The folders of a comparison."""
_FILE = "comparison.json"
"""The cells of a comparison and the methods that it compares, resolved when it begins."""
_TRIALS = "trials.json"
"""All trials of a method's tuning, in its folder."""
_PAUSE = 1.0
"""Seconds between looks at cells that other processes are doing."""


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """The facts about a method that tables need, so that they can be written without its code."""

    title: str
    citation: Citation | None
    """Its paper."""
    begins_pretrained: bool
    """Whether its runs begin from the pretrained model of their seed."""
    trains_alone: bool = False
    """Whether its devices never exchange anything."""
    in_partial_table: bool = False
    """Whether it is a column of the paper's table of methods for one and the same personal part."""


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: Path
    values: Mapping[str, Any]
    """Its config, with files named from its folder."""
    cells: Sequence[Cell]
    methods: Mapping[str, ComparedMethod]
    """By the name that cells give them."""

    def run_of(self, cell: Cell) -> RunFolder:
        """Return a cell's run."""
        return RunFolder(self.folder_of(cell))

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
        return runner.go_on(self._tuned(cell).config(out=self.folder_of(cell), start=start), self.folder)

    def failure_file(self, cell: Cell) -> Path:
        """Return where it is written why a cell failed; without that file it is tried again."""
        return self.folder / _CELLS / f"{cell.name}.failed"

    def why_failed(self, cell: Cell) -> str:
        """Return why a cell failed, nothing where it did not."""
        with contextlib.suppress(FileNotFoundError):
            return self.failure_file(cell).read_text()
        begins_pretrained = self.methods[cell.method].begins_pretrained
        return "its start failed" if begins_pretrained and self.why_failed(self.start_of(cell)) else ""

    def failed(self) -> dict[str, str]:
        """Return why cells failed, by name."""
        return {cell.name: reason for cell in self.cells if (reason := self.why_failed(cell))}

    def is_over(self, cell: Cell) -> bool:
        """Return whether there is nothing left to do of a cell."""
        return self.run_of(cell).is_finished or bool(self.why_failed(cell))

    def tuned_file(self, cell: Cell) -> Path:
        """Return where the values are that a cell's method was tuned to."""
        return self.folder / _TUNED / f"{cell.kind}.json"

    def tuned_to(self, cell: Cell) -> Mapping[str, Any]:
        """Return the values that a cell's method was tuned to, none where it was not."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.tuned_file(cell).read_bytes())
        return {}

    def trials_of(self, cell: Cell) -> Tuned | None:
        """Return all trials that a cell's method was tuned with, None if it was not tuned."""
        with contextlib.suppress(FileNotFoundError):
            return trials_from(json.loads((self.trials_folder(cell) / _TRIALS).read_bytes()))
        return None

    def trials_folder(self, cell: Cell) -> Path:
        """Return the folder with the runs that a cell's method was tuned with."""
        return self.tuned_file(cell).with_suffix("")

    def _tuned(self, cell: Cell) -> Cell:
        """Return a cell with the values that its method was tuned to."""
        return replace(cell, values=with_values(cell.values, self.tuned_to(cell)))


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
    resolved = {
        "methods": {method: asdict(own) for method, own in _methods(config, cells).items()},
        "cells": [asdict(cell) for cell in cells_in(settled, folder)],
    }
    replace_file(folder / _FILE, json.dumps(resolved, indent=1).encode())
    replace_file(folder / "config.toml", tomli_w.dumps(settled).encode())
    return reopen(folder)


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / "config.toml").is_file() and (folder / _FILE).is_file()


def reopen(folder: Path) -> Comparison:
    """Return the comparison in a folder, from its files alone: no task or model is built.

    Raises:
        ConfigError: there is none, or its files are damaged.
    """
    if not is_comparison(folder):
        raise ConfigError(f"`{folder}` is not the folder of a comparison: it has no `{_FILE}`.")
    values = read_values(folder / "config.toml")
    try:
        resolved = json.loads((folder / _FILE).read_bytes())
        cells = [Cell(**cell) for cell in resolved["cells"]]
        methods = {method: _method_from(own) for method, own in resolved["methods"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"`{folder / _FILE}` is damaged: {error}") from error
    return Comparison(folder, values, cells, methods)


def _method_from(values: Mapping[str, Any]) -> ComparedMethod:
    """Return a method as it is recorded."""
    citation = values["citation"]
    return ComparedMethod(**{**values, "citation": Citation(**citation) if citation else None})


def _methods(config: Config, cells: Sequence[Cell]) -> dict[str, ComparedMethod]:
    """Return the methods of some cells; pretraining and its continuation by their server optimizers."""
    compared = [cell.method for cell in kinds(cells) if cell.method != START]
    titles = titles_of(compared)
    papers = {method: named(method).citation for method in compared}
    for method, stage in ((START, config.pretrain), (registry.REFERENCE, config.personalize)):
        titles[method] = servers.title_of(stage.server_optimizer)
        papers[method] = registry.citations().get(servers.cites_of(stage.server_optimizer))
    if config.pretrain.rounds:
        titles[registry.REFERENCE] += ", continued"
    else:
        titles[START], papers[START] = "Start", None
    methods = {START: ComparedMethod(title=titles[START], citation=papers[START], begins_pretrained=False)}
    for method in compared:
        methods[method] = ComparedMethod(
            title=titles[method],
            citation=papers[method],
            begins_pretrained=named(method).from_scratch is None,
            trains_alone=named(method).trains_alone,
            in_partial_table=named(method).in_partial_table and not method.endswith(STATELESS),
        )
    return methods


def cells_in(values: Mapping[str, Any], beside: Path) -> list[Cell]:
    """Return the cells of a comparison; files that it names are looked for `beside` it."""
    find_code(values.get("made_with", {}), beside)
    config = base_of(values)
    check(config.compare)
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
        return runner.Prepared(config, build(config, beside), Path())
    except ConfigError as error:
        what = " ".join(filter(None, (cell.title or "The start", cell.partition)))
        raise ConfigError(f"{what}: {error}") from error


def _from_folder(
    values: Mapping[str, Any], cells: Sequence[Cell], beside: Path, folder: Path
) -> dict[str, Any]:
    """Return values with files named from the comparison's folder, and what it was made with."""
    config, folder = base_of(values), folder.resolve()
    files = {f"task.{key}": path for key, path in data_files(config, beside).items()}
    if config.model.start:
        files["model.start"] = beside / config.model.start
    changes = {key: os.path.relpath(path.resolve(), folder) for key, path in files.items()}
    versions = made_with(config, folder, *(cell.config(out=folder) for cell in kinds(cells)))
    return with_values(values, {**changes, "made_with": versions, "out": None})


def pretrained_in(folder: Path) -> Path:
    """Return the file with the model that a run has pretrained."""
    return (folder / "shared" / f"{Stage.PRETRAINED}.safetensors").resolve()


def finish(comparison: Comparison, tick: OnProgress, told: Watch = ignore) -> dict[str, str]:
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
    if cell.begins_pretrained and not comparison.run_of(comparison.start_of(cell)).is_finished:
        return False
    with held(comparison.folder / _CELLS / f"{cell.name}.lock") as is_ours:
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
    with held(path.with_suffix(".lock")) as is_ours:
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
    folder = comparison.trials_folder(cell)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tick = progress.part(f"tuning {cell.kind}")
    start = _start_of_trials(comparison, cell, tick, progress.told) if cell.begins_pretrained else None
    ground = Ground(values=cell.values, beside=comparison.folder, folder=folder, start=start)
    told = labeled(progress.told, f"{_TUNED}/{cell.kind}")
    tuned = tune(ground, space_of(cell.config(out=folder), trials), trials=trials, tick=tick, told=told)
    replace_file(folder / _TRIALS, json.dumps(asdict(tuned), indent=1).encode())
    return tuned.best.choice


def _start_of_trials(comparison: Comparison, cell: Cell, tick: OnProgress, told: Watch) -> Path:
    """Return the model that all methods' trials begin from, pretrained without the validation rows."""
    folder = comparison.folder / _TUNED
    values = comparison.start_of(cell).values
    ground = Ground(values=values, beside=comparison.folder, folder=folder)
    with held(folder / "start.lock", wait=True):
        return pretrain(ground, tick, labeled(told, _TUNED))


@dataclass(frozen=True)
class _Progress:
    """Tells of rounds and trials as parts of a whole comparison."""

    comparison: Comparison
    tick: OnProgress
    told: Watch

    @cached_property
    def tuned(self) -> list[Cell]:
        """The cells whose methods are tuned beforehand."""
        wanted = base_of(self.comparison.values).compare.tune
        return [cell for cell in kinds(self.comparison.cells) if cell.method != START] if wanted else []

    def part(self, name: str) -> OnProgress:
        """Return what tells of one cell, or of one method's tuning."""
        tuned = sum(self.comparison.tuned_file(cell).exists() for cell in self.tuned)
        over = tuned + sum(self.comparison.is_over(cell) for cell in self.comparison.cells)
        whole = len(self.tuned) + len(self.comparison.cells)
        return lambda done, total, text: self.tick(over + done / total, whole, f"{name}, {text}")

    def of(self, cell: Cell) -> Watch:
        """Return what tells of the rounds of one cell."""
        tick, told = self.part(cell.name), labeled(self.told, f"{_CELLS}/{cell.name}")

        def watch(line: Row, done: int, total: int) -> None:
            told(line, done, total)
            tick(done, total, f"{100 * done // total} %")

        return watch
