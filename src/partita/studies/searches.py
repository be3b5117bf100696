"""Tuning the methods of a comparison on its first seed, each with the same number of trials."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from partita.durable import locked, make_folder, replace_file
from partita.seals import sealed_json
from partita.studies.cells import START, Cell
from partita.studies.comparison import Comparison, final_model, first_seed
from partita.studies.cores import Cores
from partita.studies.jobs import Job, Values
from partita.studies.search import space_of
from partita.studies.trial_runs import Pretraining, carry_out
from partita.studies.tune import Search
from partita.studies.tuning import Tuning
from partita.training.pipeline import RoundCallback


def carry_out_in_search(comparison: Comparison, values: Values, watch: RoundCallback, cores: Cores) -> Values:
    """Do one job of a method's search."""
    if values["trial"] is None:
        return carry_out(_pretraining(comparison), values, watch, cores)
    cell = next(cell for cell in first_seed(comparison.cells) if cell.kind == values["search"])
    return carry_out(_tuning(comparison, cell), values, watch, cores)


def _tuning(comparison: Comparison, cell: Cell, start: Path | None = None) -> Tuning:
    """Return the search of a cell's method."""
    folder = comparison.trials_folder(cell)
    return Tuning(
        values=cell.values,
        beside=comparison.folder,
        folder=folder,
        space=space_of(cell.config(out=folder), comparison.trials),
        trials=comparison.trials,
        start=start,
    )


def _pretraining(comparison: Comparison) -> Tuning:
    """Return the search that only pretrains, without the validation rows, for the trials of all methods."""
    (start,) = [cell for cell in first_seed(comparison.cells) if cell.method == START]
    return Tuning(values=start.values, beside=comparison.folder, folder=comparison.tuned_folder, space={})


@dataclass(frozen=True)
class _Open:
    """A search of which this process runs the trials."""

    search: Search
    lock: ExitStack


class Searches:
    """The searches of all methods, as jobs.

    Args:
        comparison: the comparison.
        held: holds the locks of searches that are running.
    """

    def __init__(self, comparison: Comparison, held: ExitStack) -> None:
        self._comparison = comparison
        self._held = held
        self._open: dict[str, _Open] = {}

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells whose methods are tuned."""
        cells = first_seed(self._comparison.cells) if self._comparison.trials else []
        return [cell for cell in cells if cell.method != START]

    @cached_property
    def _pretraining(self) -> Pretraining:
        """The pretraining for the trials of all methods that begin from it."""
        folder = self._comparison.tuned_folder
        return Pretraining(_pretraining(self._comparison), folder.name)

    @property
    def ended(self) -> int:
        """The number of methods that have been tuned."""
        return sum(self._comparison.tuned_file(cell).exists() for cell in self.cells)

    @property
    def shares(self) -> float:
        """The shares of searches that are running."""
        progress = [one.search.progress for one in self._open.values()]
        return sum(done / total for done, total in progress)

    def next(self) -> Job | None:
        """Return a trial, or the pretraining for all trials; None if nothing can be done now."""
        for cell in self.cells:
            if cell.kind not in self._open and not self._begin(cell):
                continue
            one = self._open[cell.kind]
            try:
                if (job := one.search.next()) is not None:
                    job.values = {**job.values, "search": cell.kind}
                    return job
                if one.search.is_over:
                    self._end(cell, self._best(cell, one.search))
            except Exception as error:
                self._fail(cell, error)
        return None

    def _has_ended(self, cell: Cell) -> bool:
        """Return whether a cell's method is tuned, or cannot be because its start has failed."""
        return self._comparison.tuned_file(cell).exists() or bool(self._comparison.why_failed(cell))

    def _begin(self, cell: Cell) -> bool:
        """Begin the search of a cell's method, unless it is over, or must wait, or another process has it.

        A method that begins from the reference's model waits until the reference is tuned.
        """
        start = self._comparison.start_of(cell)
        if self._has_ended(cell) or (start is not None and not self._comparison.is_tuned(start)):
            return False
        make_folder(self._comparison.tuned_folder, exist_ok=True)
        with ExitStack() as stack:
            lock = self._comparison.tuned_file(cell).with_suffix(".lock")
            if not stack.enter_context(locked(lock)) or self._has_ended(cell):
                return False
            try:
                search = self._search(cell, start)
            except Exception as error:
                self._fail(cell, error)
                return False
            self._open[cell.kind] = _Open(search, held := stack.pop_all())
            self._held.push(held)
        return True

    def _search(self, cell: Cell, start: Cell | None) -> Search:
        """Return the search of a method.

        Its trials begin from the pretrained model of all methods' trials, or from that of the best trial of
        the reference: both are trained without the validation rows.
        """
        folder, pretraining, model = self._comparison.trials_folder(cell), None, None
        folder.mkdir(exist_ok=True)
        if start is not None and start.method == START:
            pretraining = self._pretraining
        elif start is not None:
            with locked(self._comparison.tuned_folder / "start.lock", wait=True):
                model = final_model(self._comparison.best_trial(start))
        prefix = str(folder.relative_to(self._comparison.folder))
        tuning = _tuning(self._comparison, cell, model)
        return Search(tuning, pretraining, name=f"tuning {cell.kind}", prefix=prefix)

    def _best(self, cell: Cell, search: Search) -> Mapping[str, Any]:
        """Write all trials of a search that is over to its folder, and return the best values."""
        tuned = search.result()
        replace_file(self._comparison.trials_file(cell), sealed_json(asdict(tuned)))
        return tuned.best.choice

    def _fail(self, cell: Cell, error: Exception) -> None:
        """Record why a method has no best values, for its cells of all seeds."""
        for other in self._comparison.cells:
            if other.row == cell.row:
                self._comparison.record_failure(other, error, during="Tuning: ")
        self._end(cell, {})

    def _end(self, cell: Cell, best: Mapping[str, Any]) -> None:
        """Write the best values of a method, and release its search."""
        replace_file(self._comparison.tuned_file(cell), sealed_json(best))
        if cell.kind in self._open:
            self._open.pop(cell.kind).lock.close()
