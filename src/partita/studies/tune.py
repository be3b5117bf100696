"""Searching for settings on validation rows; test rows are never read.

A trial that is among the worst third of those before it is stopped early, and the choice of the next values
may depend on all trials before it. So all decisions are made in the order of the trials, however many run at
a time and whichever ends first: the rounds of a trial wait until those before it have their results. A
trial that has run on meanwhile, and is then found to be among the worst, counts as stopped where it would
have been.

An interrupted search is resumed trial by trial and round by round: the rounds and results in the folder are
taken note of again, in their order.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from partita.config.changes import value_at
from partita.config.files import check_unchanged
from partita.config.provenance import find_own_code
from partita.config.reading import to_values
from partita.config.schema import Config
from partita.config.tasks import build_task
from partita.durable import locked, replace_file
from partita.errors import ConfigError, InUse, RunFailed
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore
from partita.seals import read_json, sealed_json
from partita.studies.job_pool import runner_of
from partita.studies.jobs import CallbackFailed, Callbacks, Ending, InThisProcess, Job, Runner, Values, never
from partita.studies.same_task import check_same_task
from partita.studies.trial_runs import Pretraining, carry_out, committed, pretrains, trial_job_values
from partita.studies.trial_warnings import warn_of_equals, warn_of_unmeasured
from partita.studies.trials import Judge, Sampler, Trial, Tuned, warn_of_ends
from partita.studies.tuning import Tuning, folder_of, trial_config
from partita.tasks.metrics import Direction
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

_CHECKS = 4
"""Evaluations during training, after each of which a trial may be stopped."""


def tune(
    tuning: Tuning, *, on_progress: OnProgress, on_round: RoundCallback = ignore, runner: Runner | None = None
) -> Tuned:
    """Run the trials of a search that are left and return the results of all.

    Args:
        tuning: the config, the values to try, and the folder of the trials.
        on_progress: called with the progress of the search.
        on_round: called with every round, labeled with its trial.
        runner: runs the trials; by default one after the other in this process.

    Raises:
        RunFailed: no trial ran to its end.
    """
    find_own_code({**tuning.values, **tuning.space}, tuning.beside)
    with locked(tuning.folder) as is_ours:
        if not is_ours:
            raise InUse(f"the search in `{tuning.folder}`")
        search = Search(tuning)
        try:
            (runner or InThisProcess(partial(carry_out, tuning))).carry_out(
                search, Callbacks(on_progress, on_round)
            )
        except CallbackFailed as failure:
            raise failure.error from None
        return search.result()


def runner_for(tuning: Tuning, ending: Ending = never) -> AbstractContextManager[Runner]:
    """Return what runs the trials of a search, as many at a time as it has workers.

    It must be entered before threads are started, such as that of a progress display. `ending` says whether
    the study ends after the rounds that are running.
    """
    return runner_of(tuning.execution, partial(carry_out, tuning), ending)


@dataclass(eq=False)
class _Begun:
    """A trial whose values have been chosen; it changes in place."""

    number: int
    choice: Mapping[str, Any]
    trial: Any
    """Optuna's."""
    judge: Judge
    lines: list[RoundRow] = field(default_factory=list)
    """Its rounds so far."""
    judged: int = 0
    """How many of them the judge has taken note of."""
    outcome: Trial | Exception | None = None
    """How it ended, before it is judged."""
    is_recorded: bool = False
    """Whether its outcome was read from its file."""
    job: Job | None = None


class Search:
    """The trials of a search as jobs.

    Args:
        tuning: the search.
        pretraining: pretrains for this search and for others; None: the search pretrains itself, if it needs
            to.
        name: its name in the progress, empty where there is no other.
        prefix: its folder, from the study's.

    Raises:
        ConfigError: its files or its task have changed.
    """

    def __init__(
        self, tuning: Tuning, pretraining: Pretraining | None = None, *, name: str = "", prefix: str = ""
    ) -> None:
        self._tuning, self._name, self._prefix = tuning, name, prefix
        config = trial_config(tuning.values)
        check_unchanged(config, tuning.beside, "search")
        check_same_task(config, tuning.beside, tuning.fingerprint)
        task, _ = build_task(config, tuning.beside)
        warn_of_unmeasured(task, config)
        self._metric = task.headline
        self._direction: Direction = task.metrics[task.headline].direction
        own = {key: _value_in(config, key) for key in tuning.space}
        self._sampler = Sampler(
            tuning.space, own=own, direction=self._direction, seed=config.seed, trials=tuning.trials
        )
        if pretraining is None and pretrains(tuning, config):
            pretraining = Pretraining(tuning, prefix)
        self._pretraining = pretraining
        self._begun: list[_Begun] = []
        self._done: list[Trial] = []
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether all trials have results, or an exception has ended the search."""
        return self._error is not None or len(self._done) == self._sampler.trials

    @property
    def progress(self) -> tuple[float, int]:
        """How many trials are done, the shares of those that are running included, and the total."""
        running = self._begun[len(self._done) :]
        return len(self._done) + sum(one.job.share for one in running if one.job), self._sampler.trials

    def next(self) -> Job | None:
        """Return the next trial, or the pretraining for all of them; None if it has to wait for others."""
        if self._pretraining is not None and not self._pretraining.is_over:
            return self._pretraining.next()
        if self._pretraining is not None and self._pretraining.error is not None:
            self._error = self._pretraining.error
        while self._error is None and self._sampler.can_choose:
            one = self._choose()
            self._judge()
            if one.outcome is None and len(self._done) <= one.number:
                one.job = self._job_of(one)
                return one.job
        return None

    def _choose(self) -> _Begun:
        """Choose the values of the next trial, and read what it has done before."""
        number = len(self._begun)
        trial, choice = self._sampler.next()
        one = _Begun(number, choice, trial, Judge(trial))
        self._begun.append(one)
        with suppress(FileNotFoundError):
            one.outcome = Trial(**read_json(self._file_of(one)))
            one.is_recorded = True
            if one.outcome.choice != choice:
                raise ConfigError(
                    f"`{self._file_of(one)}` has other values than this search tries next: {choice}."
                )
        one.lines = list(committed(self._tuning, number))
        return one

    def _job_of(self, one: _Begun) -> Job:
        start = self._tuning.start
        if start is None and self._pretraining is not None:
            start = self._pretraining.file
        checks = _CHECKS if self._sampler.stops_early else 0
        values = trial_job_values(one.number, one.choice, checks, start)
        name = ", ".join(filter(None, (self._name, f"trial {one.number}")))
        return Job(name, str(Path(self._prefix, folder_of(one.number))), values, self)

    def _file_of(self, one: _Begun) -> Path:
        return self._tuning.folder / f"{folder_of(one.number)}.json"

    def begin(self, job: Job) -> None:
        """Read again which rounds a trial has committed: a process that is killed may not have said so."""
        one = self._of(job)
        one.lines = list(committed(self._tuning, one.number))

    def note(self, job: Job, line: RoundRow) -> None:
        """Take note of a round, and stop trials that are among the worst."""
        self._of(job).lines.append(line)
        self._judge()

    def end(self, job: Job, result: Values) -> None:
        """Take note of a trial's result."""
        one = self._of(job)
        one.outcome = Trial(number=one.number, choice=one.choice, **result)
        self._judge()

    def fail(self, job: Job, error: Exception) -> None:
        """Take note of a trial that cannot continue; an unexpected exception ends the search."""
        one = self._of(job)
        is_expected = isinstance(error, RunFailed)
        result = Trial(number=one.number, choice=one.choice, value=None, status=str(error))
        one.outcome = result if is_expected else error
        self._judge()

    def _of(self, job: Job) -> _Begun:
        return self._begun[job.values["trial"]]

    def _judge(self) -> None:
        """Decide how trials end, in their order, as far as all before them have ended."""
        for one in self._begun[len(self._done) :]:
            outcome = self._outcome(one)
            if isinstance(outcome, Exception):
                self._error = outcome
                for each in self._begun:
                    self._settle(each)
            if not isinstance(outcome, Trial):
                return
            self._sampler.record(one.trial, outcome.value)
            if not one.is_recorded:
                replace_file(self._file_of(one), sealed_json(asdict(outcome)))
            self._done.append(outcome)
            self._settle(one)

    def _outcome(self, one: _Begun) -> Trial | Exception | None:
        """Return how a trial ended, None if that is not known yet."""
        for line in one.lines[one.judged :]:
            one.judged += 1
            if status := one.judge.note(line):
                stopped = Trial(number=one.number, choice=one.choice, value=None, status=status)
                return one.outcome if one.is_recorded else stopped
        return one.outcome

    @staticmethod
    def _settle(one: _Begun) -> None:
        if one.job is not None:
            one.job.is_settled = True

    def result(self) -> Tuned:
        """Return the results of all trials, once the search is over.

        Raises:
            RunFailed: no trial ran to its end.
        """
        if self._error is not None:
            raise self._error
        finished = [trial for trial in self._done if trial.value is not None]
        if not finished:
            raise RunFailed(f"No trial ran to its end: {self._done[0].status}")
        best = {"up": max, "down": min}[self._direction](finished, key=lambda trial: trial.value)
        equals = warn_of_equals(self._tuning, finished, best, self._direction)
        warnings = [*warn_of_ends(self._done, best), *equals]
        return Tuned(metric=self._metric, trials=self._done, best=best, warnings=warnings)


def _value_in(config: Config, key: str) -> Any:
    """Return the value that a config has for a key."""
    value = value_at(to_values(config), key)
    return config.personalize.shared_lr if value is None and key == "personalize.personal_lr" else value
