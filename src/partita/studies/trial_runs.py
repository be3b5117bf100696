"""The runs of a search: pretraining for all trials, and the trials themselves.

Every trial is a run with its own folder. Unless the search changes a setting of pretraining, all trials begin
from one pretrained model.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from partita.config.changes import with_values
from partita.config.reading import config_of
from partita.config.schema import Config
from partita.durable import locked
from partita.errors import RunFailed
from partita.methods import registry
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.warnings import divergence, failed_stages
from partita.studies import run as runner
from partita.studies.cores import Cores, executor_with
from partita.studies.jobs import Job, Values
from partita.studies.tuning import Tuning, folder_of, trial_values
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

_PRETRAINING = ("pretrain.", "model.", "task.", "seed", "personalize.method", "partition.frozen")
"""Keys that change the pretrained model, or whether a run begins from it."""
_START = "start"
"""The folder of the run that pretrains for all trials."""
_PRETRAINS = {"trial": None}
"""The values of the job that pretrains."""


class Pretraining:
    """The run that pretrains for all trials: a job that one process does, if several share the folder.

    Args:
        tuning: the search, or one of those that begin from the same model.
        prefix: the folder of the search, from the study's.
    """

    def __init__(self, tuning: Tuning, prefix: str = "") -> None:
        self._run = tuning.folder / _START
        self._lock = tuning.folder / f"{_START}.lock"
        self._label = str(Path(prefix, _START))
        self._held = ExitStack()
        self._is_running = False
        self.error: Exception | None = None
        """Why there is no model to begin from."""

    @property
    def file(self) -> Path:
        """The file that trials begin from."""
        return RunFolder(self._run).shared_file(Stage.PRETRAINED)

    @property
    def is_over(self) -> bool:
        """Whether there is a model to begin from, or a reason why there is none."""
        if self.error is None and not self._is_running and (run := RunFolder(self._run)).is_finished:
            self.error = next((_failed(failure) for failure in failed_stages(run)), None)
            return True
        return self.error is not None

    def next(self) -> Job | None:
        """Return the job, None if a process is doing it."""
        if self._is_running:
            return None
        with ExitStack() as stack:
            if not stack.enter_context(locked(self._lock)) or self.is_over:
                return None
            self._held = stack.pop_all()
        self._is_running = True
        return Job("pretraining for all trials", self._label, _PRETRAINS, self)

    def begin(self, job: Job) -> None:
        """Do nothing: the run goes on by itself."""

    def note(self, job: Job, line: RoundRow) -> None:
        """Do nothing: no round of it decides anything."""

    def end(self, job: Job, result: Values) -> None:
        """Let the trials begin."""
        self._is_running = False
        self._held.close()

    def fail(self, job: Job, error: Exception) -> None:
        """Let no trial begin."""
        self.error = error
        self.end(job, {})


def _failed(failure: str) -> RunFailed:
    return RunFailed(f"Pretraining for all trials failed: {failure}.")


def pretrains(tuning: Tuning, config: Config) -> bool:
    """Return whether a search pretrains one model for all of its trials."""
    changes = any(key.startswith(_PRETRAINING) for key in tuning.space)
    return tuning.start is None and config.pretrain.rounds > 0 and not changes


def trial_job_values(number: int, choice: Mapping[str, Any], checks: int, start: Path | None) -> Values:
    """Return the values of the job of one trial.

    Args:
        number: its number.
        choice: the values that it tries.
        checks: number of evaluations during training.
        start: the model that it begins from.
    """
    path = None if start is None else str(start.resolve())
    return {"trial": number, "choice": dict(choice), "checks": checks, "start": path}


def carry_out(tuning: Tuning, values: Values, watch: RoundCallback, cores: Cores) -> Values:
    """Do one job of a search: pretrain, or run a trial or what is left of it, and return its result.

    Raises:
        RunFailed: the run cannot continue.
    """
    if values["trial"] is None:
        runner.finish(
            runner.prepare_or_resume(_pretraining(tuning), tuning.beside), watch, executor_with(cores)
        )
        return {}
    number = values["trial"]
    changes: dict[str, Any] = {"out": str(tuning.folder / folder_of(number))}
    if values["start"]:
        changes |= {"model.start": values["start"], "model.start_names": None, "pretrain.rounds": 0}
    own = with_values(trial_values(tuning.values, values["choice"], checks=values["checks"]), changes)
    runner.finish(runner.prepare_or_resume(config_of(own), tuning.beside), watch, executor_with(cores))
    return _result(RunFolder(tuning.folder / folder_of(number)))


def _pretraining(tuning: Tuning) -> Config:
    """Return the config of the run that pretrains."""
    changes = {
        "personalize": {"method": registry.REFERENCE, "rounds": 0},
        "partition": {"personal": "none"},
        "out": str(tuning.folder / _START),
    }
    return config_of(with_values(trial_values(tuning.values), changes))


def _result(run: RunFolder) -> Values:
    """Return the metric and the status of a trial that ran to its end."""
    # A model that has diverged has no metric: neither an earlier stage nor the other devices stand in for it.
    if failed := [*failed_stages(run), *divergence(run)]:
        return {"value": None, "status": failed[0]}
    summary = run.summary
    *_, last_round = run.committed_rounds()
    last = summary["stages"].get(last_round["stage"], {"devices": 0})
    measured = max((stage["devices"] for stage in summary["stages"].values()), default=0)
    if not measured or last["devices"] < measured:
        status = f"{measured - last['devices']} of {measured} devices have no {summary['metric']} at the end"
        return {"value": None, "status": status}
    return {"value": last["weighted_mean"], "status": "done"}


def committed(tuning: Tuning, number: int) -> Iterator[RoundRow]:
    """Yield the lines of the rounds that a trial has committed."""
    yield from RunFolder(tuning.folder / folder_of(number)).committed_rounds()
