"""Searches for settings from Python, on the validation rows of a task of one's own."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.api.progress import study_progress
from partita.api.settings import as_list, check_same, to_resume, values_of
from partita.config.tasks import given_task
from partita.errors import ConfigError
from partita.executors.launch import warn_of_copies
from partita.report.differences import counted
from partita.report.tables.commands import trials_table
from partita.report.tables.table import Table, write_tables
from partita.studies import tuning
from partita.studies.checking import check_sound
from partita.studies.folders import is_search
from partita.studies.trials import SearchSpace, Trial, Tuned
from partita.studies.tune import runner_for
from partita.studies.tune import tune as run_search
from partita.tasks.task import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TuningResult:
    """The result of a search in its folder."""

    tuned: Tuned
    folder: Path
    """The folder of the search, with a run for each trial."""

    @property
    def best(self) -> Mapping[str, Any]:
        """The best values by key; `settings={**settings, **result.best}` uses them."""
        return self.tuned.best.choice

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials: their values (`choice`), the metric on validation rows (`value`) and their `status`."""
        return self.tuned.trials

    @property
    def table(self) -> Table:
        """The table of `partita tune`."""
        return trials_table(self.tuned)

    def __repr__(self) -> str:
        """Return the best trial on one line."""
        metric = f"validation {self.tuned.metric} {self.tuned.best.value:.4f}"
        trials = counted(len(self.trials), "trial")
        return f"TuningResult({trials} in {self.folder}; best: {metric} with {self.best})"

    def _repr_html_(self) -> str:
        """Return the table of trials, for a notebook."""
        return self.table._repr_html_()


def tune(
    task: Task,
    space: SearchSpace,
    *,
    trials: int = 0,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool | None = None,
) -> TuningResult:
    """Search for settings on validation rows, as `partita tune` does, and return the best.

    There is no `tuned.toml`, because no config has the task: `settings={**settings, **result.best}` of
    `partita.compare` uses the best values.

    Args:
        task: data, model, loss and metrics.
        space: the values to try by config key, `{"personalize.shared_lr": [0.01, 0.1]}`.
        trials: number of trials; 0: every combination.
        settings: values of other config keys; the rest have their defaults.
        out: the folder of the search; by default the next free `runs/python-tune-N`.
        resume: continue the search in `out`, if it was started there.
        workers: number of trials at a time, each in a process of its own; 1: one after the other in this
            process; 0: one for each core.
        progress: whether progress is shown; by default in a terminal or a notebook.

    Raises:
        ConfigError: an argument or a setting cannot be used; nothing has been trained then.
        RunFailed: no trial ran to its end.
    """
    warn_of_copies()
    begun = to_resume(out, resume=resume, kind="search", is_kind=is_search)
    own = {key: as_list(key, choices) for key, choices in space.items()}
    values = values_of(settings or {}, {"workers": workers}, out)
    with given_task(task):
        if begun is None:
            search = tuning.begin(values, Path(), own, trials)
        else:
            check_same(values, begun)
            check_sound(begun)
            search = _reopened(tuning.reopen(begun, workers=workers), own, trials)
        with runner_for(search) as runner, study_progress(progress) as on_progress:
            tuned = run_search(search, on_progress=on_progress, runner=runner)
    for warning in tuned.warnings:
        logger.warning(warning)
    write_tables([trials_table(tuned)], search.folder)
    return TuningResult(tuned, search.folder)


def _reopened(search: tuning.Tuning, space: SearchSpace, trials: int) -> tuning.Tuning:
    """Return a search that is to be resumed.

    Raises:
        ConfigError: it was started with another search space or number of trials.
    """
    if (dict(search.space), search.trials) != (dict(space), trials):
        raise ConfigError(
            f"The search in `{search.folder}` was started with {search.trials} trials of "
            f"{dict(search.space)}, got {trials} trials of {dict(space)}."
        )
    return search
