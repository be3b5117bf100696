"""The runs of a study as jobs, which are carried out in this process one after the other, or in others.

A study gives its jobs one by one, each as soon as everything that it depends on is there. A job is done by a
function that gets its values alone, so that another process can do it. Everything that is decided from its
rounds and its result is decided in the process that gives the jobs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from partita.errors import ends_study
from partita.progress.bar import OnProgress
from partita.progress.display import RunProgress
from partita.progress.watchers import ignore, labeled
from partita.studies.cores import Cores
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

Values = Mapping[str, Any]
"""Strings, numbers, booleans, None, and lists and mappings of them."""
Work = Callable[[Values, RoundCallback, Cores], Values]
"""Does a job with some values, calls the callback after every round, and returns the result."""
Ending = Callable[[], BaseException | None]
"""Returns the exception that ends a study after the rounds that are running, None as long as it goes on."""
PAUSE = 1.0
"""Seconds after which to look again for jobs, while other processes have all that are left."""
_NAMED = 4
"""Jobs that are named in the progress."""


def never() -> None:
    """Let a study go on to its end."""


class Owner(Protocol):
    """Decides from a job's rounds and its result; all methods act in place."""

    def begin(self, job: "Job") -> None:
        """Take note that a job is about to begin, or to begin again after its process was killed."""
        ...

    def note(self, job: "Job", line: RoundRow) -> None:
        """Take note of a round."""
        ...

    def end(self, job: "Job", result: Values) -> None:
        """Take note of the result."""
        ...

    def fail(self, job: "Job", error: Exception) -> None:
        """Take note of the exception that ended a job."""
        ...


@dataclass(eq=False)
class Job:
    """A run of a study, with its progress, which changes in place."""

    name: str
    """Its name in the progress."""
    folder: str
    """Its folder, from the study's: the label of its rounds."""
    values: Values
    """All that a process needs to do it."""
    owner: Owner
    is_settled: bool = False
    """Whether its result is known, so that what is left of it need not be done."""
    share: float = 0.0
    """The share of it that is done."""
    progress: RunProgress = field(default_factory=RunProgress)

    def note(self, line: RoundRow, done: int, total: int) -> None:
        """Take note of a round in place."""
        self.progress, self.share = self.progress.after(line), done / total
        self.owner.note(self, line)

    @property
    def percent(self) -> str:
        """The share of it that is done, in whole percent."""
        return f"{int(100 * self.share + 1e-6)} %"

    def __str__(self) -> str:
        """Return its name and its progress."""
        return ", ".join(filter(None, (self.name, self.percent, self.progress.evaluation)))


class Study(Protocol):
    """Gives jobs as soon as they can be done."""

    def next(self) -> Job | None:
        """Return a job that can be done now, None if there is none."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no job is left, those that other processes do included."""
        ...

    @property
    def progress(self) -> tuple[float, int]:
        """How much is done, and the total."""
        ...


class Stopped(Exception):
    """The result of a job is known before its end."""


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a study's caller: what they raise ends the study, where other exceptions end a job."""

    on_progress: OnProgress
    on_round: RoundCallback = ignore

    def after(self, job: Job, line: RoundRow, done: int, total: int) -> None:
        """Pass on a round, labeled with its job."""
        try:
            labeled(self.on_round, job.folder)(line, done, total)
        except Exception as error:
            raise CallbackFailed(error) from error

    def show(self, study: Study, running: Sequence[Job]) -> None:
        """Show the progress of a study with the jobs that are running."""
        try:
            self.on_progress(*study.progress, _text(running))
        except Exception as error:
            raise CallbackFailed(error) from error


class CallbackFailed(BaseException):
    """A callback of the caller's failed."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _text(running: Sequence[Job]) -> str:
    """Return the jobs that are running in words.

    >>> jobs = [Job(name, "", {}, owner=None, share=0.5) for name in "abcdef"]
    >>> _text(jobs[:1]), _text(jobs[:2]), _text(jobs)
    ('a, 50 %', 'a 50 %, b 50 %', 'a 50 %, b 50 %, c 50 %, d 50 % and 2 others')
    """
    if len(running) == 1:
        return str(running[0])
    named = ", ".join(f"{job.name} {job.percent}" for job in running[:_NAMED])
    others = len(running) - _NAMED
    return f"{named} and {others} other{'s' if others > 1 else ''}" if others > 0 else named


class Runner(Protocol):
    """Carries out all jobs of a study."""

    def carry_out(self, study: Study, callbacks: Callbacks) -> None:
        """Carry out all jobs, together with other processes."""
        ...


@dataclass(frozen=True)
class InThisProcess:
    """Carries out jobs one after the other in this process."""

    work: Work
    ending: Ending = never

    def carry_out(self, study: Study, callbacks: Callbacks) -> None:
        """Carry out all jobs, together with other processes."""
        while not study.is_over:
            self._check()
            if (job := study.next()) is None:
                time.sleep(PAUSE)
            else:
                self._do(job, study, callbacks)

    def _do(self, job: Job, study: Study, callbacks: Callbacks) -> None:
        def watch(line: RoundRow, done: int, total: int) -> None:
            callbacks.after(job, line, done, total)
            job.note(line, done, total)
            callbacks.show(study, [job])
            if job.is_settled:
                raise Stopped
            self._check()

        job.owner.begin(job)
        try:
            result = self.work(job.values, watch, 1)
        except Stopped:
            return
        except Exception as error:
            if ends_study(error):
                raise
            job.owner.fail(job, error)
        else:
            job.owner.end(job, result)

    def _check(self) -> None:
        """Raise what ends the study, if it is to end."""
        if (error := self.ending()) is not None:
            raise error
