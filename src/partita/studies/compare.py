"""Running a comparison: each cell is a run with its own folder, from the model of another cell of its seed.

Several processes may share one comparison. The process that runs a cell holds its lock file, and the others
leave that cell to it. An interrupted comparison is resumed cell by cell and round by round.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.config.files import check_unchanged
from partita.config.provenance import find_own_code
from partita.config.tasks import check_given
from partita.durable import locked, make_folder, replace_file
from partita.errors import InUse
from partita.progress.bar import OnProgress
from partita.progress.display import RunProgress
from partita.progress.watchers import ignore, labeled
from partita.studies import run as runner
from partita.studies.cells import START, Cell, base_of
from partita.studies.comparison import Comparison, final_model, first_seed, reopen
from partita.studies.same_task import check_same_task
from partita.studies.search import space_of
from partita.studies.tune import pretrain, tune
from partita.studies.tuning import Tuning
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

_PAUSE = 1.0
"""Seconds to wait while other processes run all cells that are left."""


def finish(
    comparison: Comparison, on_progress: OnProgress, on_round: RoundCallback = ignore
) -> dict[str, str]:
    """Run all cells that are left, together with other processes, and return why cells failed, by name.

    Args:
        comparison: the comparison.
        on_progress: called with the progress of the comparison.
        on_round: called with every round that this process runs, labeled with its cell.
    """
    find_own_code(comparison.values, comparison.folder)
    progress = _Progress(comparison, _ending_all(on_progress), _ending_all(on_round))
    try:
        while left := [cell for cell in comparison.cells if not comparison.is_done(cell)]:
            if comparison.trials:
                _tune_all(comparison, progress)
            if not sum(_run_cell(comparison, cell, progress) for cell in left):
                time.sleep(_PAUSE)
    except _CallbackFailed as failure:
        raise failure.error from None
    return comparison.failed()


class _CallbackFailed(BaseException):
    """A callback of the caller's failed: that ends the comparison, where any other exception ends a cell."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _ending_all(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a callback whose exceptions no cell catches."""

    def call(*arguments: Any) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            raise _CallbackFailed(error) from error

    return call


def _run_cell(comparison: Comparison, cell: Cell, progress: "_Progress") -> bool:
    """Run a cell unless its start is not finished or another process has it; return whether it was run.

    An exception, of a method by import path for example, ends the cell and not the comparison.
    """
    start = comparison.start_of(cell)
    if start is not None and not comparison.run_of(start).is_finished:
        return False
    with locked(comparison.lock_file(cell)) as is_ours:
        if not is_ours or comparison.is_done(cell) or not comparison.is_tuned(cell):
            return False
        try:
            runner.finish(comparison.prepare(cell), progress.watcher(cell))
        except InUse:
            raise
        except Exception as error:
            comparison.record_failure(cell, error)
        return True


def resume(folder: Path, *, given: bool = False) -> Comparison:
    """Return the comparison in a folder to finish it, with cells that failed to be run again.

    Args:
        folder: the folder.
        given: whether a task from Python is given, which must be the comparison's even if no run is left.

    Raises:
        ConfigError: there is none, or its files or its task have changed; the folder stays as it is then.
    """
    comparison = reopen(folder)
    if given or not all(comparison.run_of(cell).is_finished for cell in comparison.cells):
        base = base_of(comparison.values)
        check_given(base)
        check_unchanged(base, folder, "comparison")
        find_own_code(comparison.values, folder)
        check_same_task(base, folder, comparison.fingerprint)
    _retry_failed(comparison)
    return comparison


def _retry_failed(comparison: Comparison) -> None:
    """Forget why cells failed, so that they are run again, from their last committed round.

    A search in which no trial ran to its end starts again. A cell that another process runs is left alone.
    """
    for cell in comparison.cells:
        with locked(comparison.lock_file(cell)) as is_ours:
            if not is_ours or not comparison.failure_file(cell).exists():
                continue
            if comparison.has_failed_search(cell):
                shutil.rmtree(comparison.trials_folder(cell), ignore_errors=True)
                comparison.tuned_file(cell).unlink(missing_ok=True)
            comparison.failure_file(cell).unlink(missing_ok=True)


def _tune_all(comparison: Comparison, progress: "_Progress") -> None:
    """Tune every method on the first seed, each with the same number of trials."""
    make_folder(comparison.tuned_folder, exist_ok=True)
    while left := [cell for cell in progress.tuned if not _has_ended(comparison, cell)]:
        if not sum(_tune_cell(comparison, cell, progress) for cell in left):
            time.sleep(_PAUSE)


def _has_ended(comparison: Comparison, cell: Cell) -> bool:
    """Return whether a cell's method is tuned, or cannot be because its start has failed."""
    return comparison.tuned_file(cell).exists() or bool(comparison.why_failed(cell))


def _tune_cell(comparison: Comparison, cell: Cell, progress: "_Progress") -> bool:
    """Tune the method of a cell unless another process does; return whether it was tuned.

    A method that begins from the reference's model waits until the reference is tuned.
    """
    path, start = comparison.tuned_file(cell), comparison.start_of(cell)
    if start is not None and not comparison.is_tuned(start):
        return False
    with locked(path.with_suffix(".lock")) as is_ours:
        if not is_ours or _has_ended(comparison, cell):
            return False
        best: Mapping[str, Any] = {}
        try:
            best = _best(comparison, cell, progress)
        except Exception as error:
            for other in comparison.cells:
                if other.row == cell.row:
                    comparison.record_failure(other, error, during="Tuning: ")
        replace_file(path, json.dumps(dict(best), indent=1).encode())
        return True


def _best(comparison: Comparison, cell: Cell, progress: "_Progress") -> Mapping[str, Any]:
    """Run the trials of a method, write all of them to its folder, and return the best values."""
    folder = comparison.trials_folder(cell)
    folder.mkdir(exist_ok=True)
    on_progress = progress.part(f"tuning {cell.kind}")
    start = _start_of_trials(comparison, cell, on_progress, progress.on_round)
    tuned = tune(
        Tuning(
            values=cell.values,
            beside=comparison.folder,
            folder=folder,
            space=space_of(cell.config(out=folder), comparison.trials),
            trials=comparison.trials,
            start=start,
        ),
        on_progress=on_progress,
        on_round=labeled(progress.on_round, str(folder.relative_to(comparison.folder))),
    )
    replace_file(comparison.trials_file(cell), json.dumps(asdict(tuned), indent=1).encode())
    return tuned.best.choice


def _start_of_trials(
    comparison: Comparison, cell: Cell, on_progress: OnProgress, on_round: RoundCallback
) -> Path | None:
    """Return the model that a method's trials begin from, trained without the validation rows.

    It is the pretrained model of all methods' trials, or that of the best trial of the reference.
    """
    folder, start = comparison.tuned_folder, comparison.start_of(cell)
    if start is None:
        return None
    with locked(folder / "start.lock", wait=True):
        if start.method != START:
            return final_model(comparison.best_trial(start))
        tuning = Tuning(values=start.values, beside=comparison.folder, folder=folder, space={})
        return pretrain(tuning, on_progress, labeled(on_round, folder.name))


@dataclass(frozen=True)
class _Progress:
    """The progress of a whole comparison, from the progress of its cells and trials."""

    comparison: Comparison
    on_progress: OnProgress
    on_round: RoundCallback

    @cached_property
    def tuned(self) -> list[Cell]:
        """The cells whose methods are tuned first."""
        cells = first_seed(self.comparison.cells) if self.comparison.trials else []
        return [cell for cell in cells if cell.method != START]

    def part(self, name: str) -> OnProgress:
        """Return a callback for the progress of one cell, or of the tuning of one method."""
        tuned = sum(self.comparison.tuned_file(cell).exists() for cell in self.tuned)
        over = tuned + sum(self.comparison.is_done(cell) for cell in self.comparison.cells)
        whole = len(self.tuned) + len(self.comparison.cells)
        return lambda done, total, text: self.on_progress(over + done / total, whole, f"{name}, {text}")

    def watcher(self, cell: Cell) -> RoundCallback:
        """Return a callback for the rounds of one cell."""
        folder = self.comparison.folder_of(cell).relative_to(self.comparison.folder)
        on_progress, on_round = self.part(cell.name), labeled(self.on_round, str(folder))
        progress = RunProgress()

        def watch(line: RoundRow, done: int, total: int) -> None:
            nonlocal progress
            progress = progress.after(line)
            on_round(line, done, total)
            on_progress(
                done, total, ", ".join(filter(None, (f"{100 * done // total} %", progress.evaluation)))
            )

        return watch
