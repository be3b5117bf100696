"""Running a comparison: each cell is a run with its own folder, from the model of another cell of its seed.

Several processes may share one comparison. The process that runs a cell, or has it run by another, holds its
lock file, and the others leave that cell to it. An interrupted comparison is resumed cell by cell and round
by round.
"""

import shutil
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from partita.config.changes import with_values
from partita.config.files import check_unchanged
from partita.config.provenance import find_own_code
from partita.config.tasks import check_given
from partita.durable import locked
from partita.errors import Damaged, InUse
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore
from partita.studies import run as runner
from partita.studies.cells import Cell, base_of
from partita.studies.checking import check_sound
from partita.studies.comparison import Comparison, reopen
from partita.studies.cores import Cores, executor_with
from partita.studies.job_pool import runner_of
from partita.studies.jobs import CallbackFailed, Callbacks, Ending, InThisProcess, Job, Runner, Values, never
from partita.studies.same_task import check_same_task
from partita.studies.searches import Searches, carry_out_in_search
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback


def finish(
    comparison: Comparison,
    on_progress: OnProgress,
    on_round: RoundCallback = ignore,
    runner: Runner | None = None,
) -> dict[str, str]:
    """Run all cells that are left, together with other processes, and return why cells failed, by name.

    Args:
        comparison: the comparison.
        on_progress: called with the progress of the comparison.
        on_round: called with every round that this process runs, or has others run, labeled with its cell.
        runner: runs the cells; by default one after the other in this process.
    """
    find_own_code(comparison.values, comparison.folder)
    own = runner or InThisProcess(partial(carry_out, comparison))
    with ExitStack() as held:
        try:
            own.carry_out(Cells(comparison, held), Callbacks(on_progress, on_round))
        except CallbackFailed as failure:
            raise failure.error from None
    return comparison.failed()


def runner_for(comparison: Comparison, ending: Ending = never) -> AbstractContextManager[Runner]:
    """Return what runs the cells of a comparison, as many at a time as it has workers.

    It must be entered before threads are started, such as that of a progress display. `ending` says whether
    the study ends after the rounds that are running.
    """
    return runner_of(comparison.execution, partial(carry_out, comparison), ending)


def carry_out(comparison: Comparison, values: Values, watch: RoundCallback, cores: Cores) -> Values:
    """Do one job of a comparison: run a cell, or what is left of it, or a trial of a method's search."""
    if "cell" not in values:
        return carry_out_in_search(comparison, values, watch, cores)
    cell = next(cell for cell in comparison.cells if cell.name == values["cell"])
    runner.finish(comparison.prepare(cell), watch, executor_with(cores))
    return {}


class Cells:
    """The cells of a comparison as jobs, after the trials that tune their methods.

    Args:
        comparison: the comparison.
        held: holds the locks of what is running.
    """

    def __init__(self, comparison: Comparison, held: ExitStack) -> None:
        self._comparison = comparison
        self._searches = Searches(comparison, held)
        self._held = held
        self._running: dict[str, tuple[Job, ExitStack]] = {}
        self._over = self._count()

    @property
    def is_over(self) -> bool:
        """Whether every cell is finished or has failed."""
        return not self._running and all(map(self._comparison.is_done, self._comparison.cells))

    @property
    def progress(self) -> tuple[float, int]:
        """How many cells are done and methods tuned, the shares of those that are running included."""
        shares = sum(job.share for job, _ in self._running.values()) + self._searches.shares
        return self._over + shares, len(self._comparison.cells) + len(self._searches.cells)

    def next(self) -> Job | None:
        """Return a trial of a search, or a cell; None if all that are left wait for others."""
        job = self._searches.next() or self._next_cell()
        self._over = self._count()
        return job

    def _count(self) -> int:
        """Return how many cells are done and methods tuned."""
        done = [
            c for c in self._comparison.cells if c.name not in self._running and self._comparison.is_done(c)
        ]
        return len(done) + self._searches.ended

    def _next_cell(self) -> Job | None:
        for cell in self._comparison.cells:
            if cell.name not in self._running and self._is_ready(cell):
                with ExitStack() as stack:
                    is_ours = stack.enter_context(locked(self._comparison.lock_file(cell)))
                    if is_ours and self._is_free(cell) and not self._comparison.is_done(cell):
                        return self._job_of(cell, stack.pop_all())
        return None

    def _is_ready(self, cell: Cell) -> bool:
        """Return whether a cell is left, and its method is tuned and its start finished."""
        if self._comparison.is_done(cell) or not self._comparison.is_tuned(cell):
            return False
        start = self._comparison.start_of(cell)
        return start is None or self._comparison.run_of(start).is_finished

    def _is_free(self, cell: Cell) -> bool:
        """Return whether nothing is writing a cell's run, such as a process whose parent was just killed."""
        folder = self._comparison.folder_of(cell)
        if not folder.exists():
            return True
        with locked(folder) as is_free:
            return is_free

    def _job_of(self, cell: Cell, lock: ExitStack) -> Job:
        folder = self._comparison.folder_of(cell).relative_to(self._comparison.folder)
        job = Job(cell.name, str(folder), {"cell": cell.name}, self)
        self._held.push(lock)
        self._running[cell.name] = job, lock
        return job

    def begin(self, job: Job) -> None:
        """Do nothing: a run goes on by itself."""

    def note(self, job: Job, line: RoundRow) -> None:
        """Do nothing: no round of a cell decides anything."""

    def end(self, job: Job, result: Values) -> None:
        """Release a cell that is finished."""
        _, lock = self._running.pop(job.name)
        lock.close()
        self._over = self._count()

    def fail(self, job: Job, error: Exception) -> None:
        """Record why a cell failed; the comparison goes on without it.

        Raises:
            InUse: another process is writing its run.
            Damaged: a file of its run is damaged, which somebody has to look at.
        """
        if isinstance(error, InUse | Damaged):
            raise error
        cell = next(cell for cell in self._comparison.cells if cell.name == job.name)
        self._comparison.record_failure(cell, error)
        self.end(job, {})


def resume(folder: Path, *, workers: int | None = None, given: bool = False) -> Comparison:
    """Return the comparison in a folder to finish it, with cells that failed to be run again.

    Args:
        folder: the folder.
        workers: the number of cells at a time in this process's part of it; None: the comparison's own.
        given: whether a task from Python is given, which must be the comparison's even if no run is left.

    Raises:
        ConfigError: there is none, or its files or its task have changed; the folder stays as it is then.
    """
    comparison = reopen(folder)
    check_sound(folder)
    if given or not all(comparison.run_of(cell).is_finished for cell in comparison.cells):
        base = base_of(comparison.values)
        check_given(base)
        check_unchanged(base, folder, "comparison")
        find_own_code(comparison.values, folder)
        check_same_task(base, folder, comparison.fingerprint)
    _retry_failed(comparison)
    if workers is None:
        return comparison
    return replace(comparison, values=with_values(comparison.values, {"workers": workers}))


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
