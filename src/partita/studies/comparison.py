"""A comparison in its folder: its config, its cells with their runs, and the results of tuning."""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partita.config.building import build_execution
from partita.config.changes import with_values
from partita.config.reading import read_values
from partita.durable import locked, replace_file
from partita.errors import ConfigError, RunFailed, did_you_mean, explained
from partita.executors.settings import Execution
from partita.methods import registry
from partita.methods.named import Citation
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.frozen import bytes_without, frozen_in
from partita.runs.tensors import shared_tensors
from partita.runs.warnings import has_failed_stage
from partita.seals import damaged, read_json, sealed_text, unsealed_text
from partita.studies import run as runner
from partita.studies.cells import START, Cell, base_of
from partita.studies.columns import chosen
from partita.studies.folders import CELLS, COMPARISON_FILE, check_recorded, check_sealed, is_comparison, not_a
from partita.studies.trials import Tuned, trials_from
from partita.studies.tuning import folder_of

_TUNED = "tuned"
"""The folder of the methods' tuning."""
_WHOLE = "whole"
"""The whole model of a run without a personal part, in its folder of shared tensors."""
_TRIALS = "trials.json"
"""All trials of a method's tuning, in its folder."""


@dataclass(frozen=True, kw_only=True)
class ComparedMethod:
    """The facts about a method that tables need, so that they can be written without its code."""

    title: str
    citation: Citation | None
    """Its paper, if it has one."""
    begins_pretrained: bool
    """Whether its runs begin from the pretrained model of their seed."""
    trains_alone: bool
    """Whether its devices never exchange anything."""
    begins_continued: bool = False
    """Whether its runs begin from the model of their seed's reference instead."""


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: Path
    values: Mapping[str, Any]
    """The config's values, with paths relative to the folder."""
    cells: Sequence[Cell]
    methods: Mapping[str, ComparedMethod]
    """By the name that cells give them."""
    notes: Sequence[str] = ()
    """The personal parts that are left out or the same as others."""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    """The parts of its task that must not change on resume."""

    def showing(self, *, baseline: str = "", columns: Sequence[str] = ()) -> "Comparison":
        """Return the comparison with another baseline, and other columns shown; its files stay as they are.

        Raises:
            ConfigError: it does not compare the baseline, or there is no such column.
        """
        known = [method for method in self.methods if method != START]
        if baseline and baseline not in known:
            raise ConfigError(
                f"`baseline` must be one of the methods compared, {', '.join(known)}, got {baseline!r}."
                f"{did_you_mean(baseline, known)}"
            )
        given = {"compare.baseline": baseline, "compare.columns": list(chosen(columns)) if columns else []}
        return replace(self, values=with_values(self.values, {k: v for k, v in given.items() if v}))

    @property
    def trials(self) -> int:
        """Number of trials with which each method is tuned first."""
        return base_of(self.values).compare.tune

    @property
    def execution(self) -> Execution:
        """How many of its runs are carried out at a time."""
        return build_execution(base_of(self.values))

    @property
    def tuned_folder(self) -> Path:
        """The folder of the methods' tuning."""
        return self.folder / _TUNED

    def run_of(self, cell: Cell) -> RunFolder:
        """Return a cell's run."""
        return RunFolder(self.folder_of(cell))

    def folder_of(self, cell: Cell) -> Path:
        """Return the folder of a cell's run."""
        return self.folder / CELLS / cell.name

    def lock_file(self, cell: Cell) -> Path:
        """Return the lock of a cell, which the process that runs it holds."""
        return self.folder / CELLS / f"{cell.name}.lock"

    def start_of(self, cell: Cell) -> Cell | None:
        """Return the cell whose model another begins from, None for one that begins from scratch."""
        own = self.methods[cell.method]
        if not own.begins_pretrained:
            return None
        method = registry.REFERENCE if own.begins_continued else START
        return next(other for other in self.cells if other.seed == cell.seed and other.method == method)

    def prepare(self, cell: Cell) -> runner.Prepared:
        """Begin a cell's run, or resume it; its folder is created if needed."""
        start, before = None, self.start_of(cell)
        if before is not None:
            with locked(self.lock_file(before), wait=True):
                start = final_model(self.run_of(before))
        tuned = replace(cell, values=with_values(cell.values, self.tuned_to(cell)))
        return runner.prepare_or_resume(tuned.config(out=self.folder_of(cell), start=start), self.folder)

    def failure_file(self, cell: Cell) -> Path:
        """Return the file with the reason why a cell failed; without that file it is run again."""
        return self.folder / CELLS / f"{cell.name}.failed"

    def record_failure(self, cell: Cell, error: Exception, during: str = "") -> None:
        """Write why a cell failed: the reason on one line, then the traceback of an unexpected exception."""
        if isinstance(error, RunFailed | ConfigError):
            text = str(error)
        else:
            text = "\n".join([explained(error), "", "".join(traceback.format_exception(error))])
        replace_file(self.failure_file(cell), sealed_text(f"{during}{text}", last=True))

    def why_failed(self, cell: Cell) -> str:
        """Return the reason why a cell failed, empty if it did not."""
        with contextlib.suppress(FileNotFoundError):
            return self.failure_of(cell).partition("\n")[0]
        start = self.start_of(cell)
        return "its start failed" if start is not None and self._has_failed(start) else ""

    def failure_of(self, cell: Cell) -> str:
        """Return what was recorded about a cell that failed.

        Raises:
            FileNotFoundError: it has not failed.
        """
        path = self.failure_file(cell)
        if (text := unsealed_text(path, path.read_bytes(), last=True)) is None:
            raise damaged(path, "its sha256 is gone")
        return text

    def _has_failed(self, cell: Cell) -> bool:
        """Return whether a cell has failed, or has finished with a stage that failed."""
        run = self.run_of(cell)
        return bool(self.why_failed(cell)) or (run.is_finished and has_failed_stage(run))

    def failed(self) -> dict[str, str]:
        """Return the reasons why cells failed, by name."""
        return {cell.name: reason for cell in self.cells if (reason := self.why_failed(cell))}

    @property
    def has_failures(self) -> bool:
        """Whether a cell, or a stage of a finished cell, failed."""
        return bool(self.failed()) or any(map(self._has_failed, self.cells))

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell is finished or has failed."""
        return self.run_of(cell).is_finished or bool(self.why_failed(cell))

    def tuned_file(self, cell: Cell) -> Path:
        """Return the file with the values that a cell's method was tuned to."""
        return self.tuned_folder / f"{cell.kind}.json"

    def is_tuned(self, cell: Cell) -> bool:
        """Return whether a cell's method has been tuned, or needs no tuning."""
        return not self.trials or cell.method == START or self.tuned_file(cell).exists()

    def tuned_to(self, cell: Cell) -> Mapping[str, Any]:
        """Return the values that a cell's method was tuned to, none if it was not tuned."""
        with contextlib.suppress(FileNotFoundError):
            return read_json(self.tuned_file(cell))
        return {}

    def has_failed_search(self, cell: Cell) -> bool:
        """Return whether the search for a cell's method has ended, and no trial ran to its end."""
        return self.tuned_file(cell).exists() and not self.trials_file(cell).exists()

    def trials_folder(self, cell: Cell) -> Path:
        """Return the folder with the runs that a cell's method was tuned with."""
        return self.tuned_file(cell).with_suffix("")

    def trials_file(self, cell: Cell) -> Path:
        """Return the file with all trials of a cell's method."""
        return self.trials_folder(cell) / _TRIALS

    def trials_of(self, cell: Cell) -> Tuned | None:
        """Return all trials that a cell's method was tuned with, None if it was not tuned."""
        with contextlib.suppress(FileNotFoundError):
            return trials_from(read_json(self.trials_file(cell)))
        return None

    def best_trial(self, cell: Cell) -> RunFolder:
        """Return the run of the best trial of a cell's method, which has been tuned."""
        tuned = trials_from(read_json(self.trials_file(cell)))
        return RunFolder(self.trials_folder(cell) / folder_of(tuned.best.number))


def reopen(folder: Path) -> Comparison:
    """Return the comparison in a folder, from its files alone: no task or model is built.

    Raises:
        ConfigError: there is none, or its files are damaged.
    """
    if not is_comparison(folder):
        raise not_a("comparison", folder, COMPARISON_FILE)
    check_sealed(folder / "config.toml")
    values = read_values(folder / "config.toml")
    check_recorded(values, folder, "comparison")
    resolved = read_json(folder / COMPARISON_FILE)
    try:
        cells = [Cell(**cell) for cell in resolved["cells"]]
        methods = {method: _method_from(own) for method, own in resolved["methods"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"`{folder / COMPARISON_FILE}` is damaged: {error}") from error
    further = {name: resolved[name] for name in ("notes", "fingerprint") if name in resolved}
    return Comparison(folder, values, cells, methods, **further)


def _method_from(values: Mapping[str, Any]) -> ComparedMethod:
    citation = values["citation"] and Citation(**values["citation"])
    return ComparedMethod(**{**values, "citation": citation})


def first_seed(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the first seed; those of other seeds differ only in the seed."""
    return [cell for cell in cells if cell.seed == cells[0].seed]


def final_model(run: RunFolder) -> Path:
    """Return the file with the whole model of a finished run without a personal part.

    After rounds of personalization a run saves u; frozen tensors are those of its pretrained model. The file
    with both is written beside them, once, under a lock that the caller holds.
    """
    pretrained, whole = run.shared_file(Stage.PRETRAINED), run.shared_file(_WHOLE)
    if not run.values["personalize"]["rounds"]:
        return pretrained.resolve()
    if not whole.exists():
        tensors = {**shared_tensors(run, Stage.PRETRAINED), **shared_tensors(run, Stage.PERSONALIZED)}
        replace_file(whole, bytes_without(tensors, frozen_in(pretrained.read_bytes())))
    return whole.resolve()
