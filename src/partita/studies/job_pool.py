"""Several runs of a study at a time, each in a process of its own.

The parent gives the jobs, makes all decisions, shows the progress and calls the callbacks. A process of the
pool does one job and sends its rounds, its log messages and what it prints to the parent. A process that is
killed is replaced once, and its run resumes from its last committed round.

The cores are shared out among the jobs that are running: each has one, and cores for which there is no job go
to those that are, which then visit several devices at a time.
"""

import contextlib
import logging
import mmap
import os
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from partita.data.cache import ExampleCache
from partita.errors import RunFailed, ends_study
from partita.executors.messages import receive
from partita.executors.output import Replay
from partita.executors.processes import Child, Nursery
from partita.executors.remote_errors import error_of
from partita.executors.serial import SerialExecutor
from partita.executors.settings import Execution
from partita.studies.job_process import STOP, do_job
from partita.studies.jobs import PAUSE, Callbacks, Ending, InThisProcess, Job, Runner, Study, Work, never
from partita.studies.local import needs_workers

logger = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that a process has to end by itself, for example to close what watchers have opened."""
_LOOK = 0.1
"""Seconds after which to look again whether the study is to end."""
_STARTS = 2
"""How often a job is started, if its process is killed."""
_DIED = "its process {}, also when it was started again: there may not be enough memory for it"
"""Why a job failed whose process was killed."""
_BYTES = 4
"""Bytes of a number of cores in the memory that all processes share."""


@contextlib.contextmanager
def runner_of(execution: Execution, work: Work, ending: Ending = never) -> Iterator[Runner]:
    """Yield what runs a study's jobs: this process if there is one worker, otherwise others.

    It must be entered before threads are started, such as that of a progress display.
    """
    if not needs_workers(execution):
        yield InThisProcess(work, ending)
        return
    with JobPool(execution.processes, work, ending) as pool:
        yield pool


def shares_of(jobs: int, cores: int) -> list[int]:
    """Return how many cores each of some jobs has.

    >>> shares_of(2, 2), shares_of(1, 4), shares_of(3, 8)
    ([1, 1], [4], [3, 3, 2])
    """
    each, more = divmod(cores, jobs) if jobs else (0, 0)
    return [each + (place < more) for place in range(jobs)]


@dataclass(eq=False)
class _Running:
    """A job whose process is running; it changes in place."""

    job: Job
    slot: int
    """The place of its number of cores in the shared memory."""
    child: Child
    starts: int = 1
    has_ended: bool = False
    """Whether its result has arrived."""
    deadline: float | None = None
    """When it is killed, if it was asked to stop."""

    def stop(self) -> None:
        """Ask the process to end at once (in place)."""
        if self.deadline is None:
            self.deadline = time.monotonic() + _PATIENCE
            os.kill(self.child.pid, STOP)


class JobPool:
    """Carries out several jobs at a time, each in a process of its own.

    Args:
        cores: the number of jobs at a time, and of the cores that they share.
        work: does a job.
        ending: says whether all of them end after their rounds.
    """

    def __init__(self, cores: int, work: Work, ending: Ending = never) -> None:
        self._cores = cores
        self._memory = mmap.mmap(-1, _BYTES * cores + 1)  # The last byte says whether all are to end.
        self._ending = ending
        self._nursery = Nursery(self._serve)
        self._work = work
        self._selector = selectors.DefaultSelector()
        self._running: list[_Running] = []
        self._replay = Replay()

    def __enter__(self) -> Self:
        self._nursery.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill processes that are left."""
        self._nursery.__exit__(kind, error, trace)
        self._selector.close()

    def carry_out(self, study: Study, callbacks: Callbacks) -> None:
        """Carry out all jobs, together with other processes."""
        try:
            while self._running or not study.is_over:
                if (error := self._ending()) is None:
                    self._start(study)
                elif not self._running:
                    raise error
                if self._running:
                    self._listen(study, callbacks)
                else:
                    time.sleep(PAUSE)
        finally:
            self._stop_all()

    def _start(self, study: Study) -> None:
        """Start all jobs that can be done now, as far as there are cores for them."""
        for slot in sorted({*range(self._cores)} - {one.slot for one in self._running}):
            if (job := study.next()) is None:
                break
            job.owner.begin(job)
            self._add(_Running(job, slot, self._spawn(job, slot)))
        self._share()

    def _spawn(self, job: Job, slot: int) -> Child:
        self._set_cores(slot, 1)
        return self._nursery.spawn({"job": dict(job.values), "slot": slot})

    def _add(self, one: _Running) -> None:
        self._selector.register(one.child.connection, selectors.EVENT_READ, one)
        self._running.append(one)

    def _share(self) -> None:
        """Share out the cores among the jobs that are running."""
        for one, count in zip(self._running, shares_of(len(self._running), self._cores), strict=True):
            self._set_cores(one.slot, count)

    def _set_cores(self, slot: int, count: int) -> None:
        self._memory[_BYTES * slot : _BYTES * (slot + 1)] = count.to_bytes(_BYTES, "big")

    def _cores_at(self, slot: int) -> int:
        return int.from_bytes(self._memory[_BYTES * slot : _BYTES * (slot + 1)], "big")

    def _serve(self, connection: socket.socket, values: Mapping[str, Any]) -> None:
        """Do one job, in the process that was forked for it."""
        ExampleCache.processes = self._cores
        SerialExecutor.first_worker = values["slot"]
        cores, ends = partial(self._cores_at, values["slot"]), lambda: bool(self._memory[-1])
        do_job(connection, values["job"], self._work, cores, ends)

    def _listen(self, study: Study, callbacks: Callbacks) -> None:
        """Take what processes send, until one of them has ended or a moment has passed."""
        until = time.monotonic() + PAUSE
        has_ended = False
        while not has_ended and (now := time.monotonic()) < until:
            self._memory[-1] = self._ending() is not None
            for key, _ in self._selector.select(min(until - now, _LOOK)):
                if (message := _received(key.data)) is None:
                    has_ended = True
                    self._bury(key.data)
                else:
                    self._take(key.data, message, study, callbacks)
            self._end_settled()

    def _take(self, one: _Running, message: Mapping[str, Any], study: Study, callbacks: Callbacks) -> None:
        """Take a message of a process."""
        job = one.job
        match message:
            case {"round": [line, done, total]}:
                if not job.is_settled:
                    callbacks.after(job, line, done, total)
                    job.note(line, done, total)
                    callbacks.show(study, [each.job for each in self._running if not each.job.is_settled])
            case {"end": result}:
                one.has_ended = True
                if not job.is_settled:
                    job.owner.end(job, result)
            case {"error": error}:
                one.has_ended = True
                if not job.is_settled:
                    _fail(job, error_of(error))
            case _:
                self._replay(message)

    def _end_settled(self) -> None:
        """Stop jobs whose results are known, and kill those that do not stop."""
        for one in self._running:
            if one.job.is_settled and not one.has_ended:
                one.stop()
            if one.deadline is not None and time.monotonic() > one.deadline:
                one.child.kill()

    def _bury(self, one: _Running) -> None:
        """Take note that a process has ended: a job without a result is started again, or has failed."""
        reason = self._remove(one)
        if one.has_ended or one.job.is_settled or self._ending() is not None:
            return
        if one.starts == _STARTS:
            one.job.owner.fail(one.job, RunFailed(_DIED.format(reason)))
            return
        logger.warning("The process of %s %s; it is started again.", one.job.name, reason)
        one.job.owner.begin(one.job)
        self._add(_Running(one.job, one.slot, self._spawn(one.job, one.slot), one.starts + 1))

    def _remove(self, one: _Running) -> str:
        """Remove a process that has ended, and return how it ended."""
        self._selector.unregister(one.child.connection)
        self._running.remove(one)
        return one.child.exit_reason()

    def _stop_all(self) -> None:
        """Stop all processes, and return when they are gone."""
        for one in self._running:
            one.job.is_settled = True
        self._end_settled()
        while self._running:
            for key, _ in self._selector.select(PAUSE):
                if _received(key.data) is None:
                    self._remove(key.data)
            self._end_settled()


def _received(one: _Running) -> Mapping[str, Any] | None:
    """Return what a process has sent, None if it has ended."""
    try:
        message = receive(one.child.connection)
    except OSError:
        return None
    return None if message is None else message.values


def _fail(job: Job, error: BaseException) -> None:
    """Let a job fail; what no exception handler should catch is raised here, as it was there."""
    if not isinstance(error, Exception) or ends_study(error):
        raise error
    job.owner.fail(job, error)
