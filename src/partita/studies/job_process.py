"""One process of a pool: does a job, and sends its rounds, its result and its output to the parent."""

import signal
import socket
from collections.abc import Callable
from types import FrameType

from partita.executors.output import Link, forward_output
from partita.executors.remote_errors import error_values
from partita.studies.cores import Cores
from partita.studies.jobs import Values, Work
from partita.training.journal import RoundRow

STOP = signal.SIGUSR1
"""The signal by which the parent ends a job at once: SIGTERM may come from anybody, to all processes."""


class _Stop(BaseException):
    """The parent wants this process to end."""


def do_job(
    connection: socket.socket, values: Values, work: Work, cores: Cores, ends: Callable[[], bool]
) -> None:
    """Do one job in a process that was forked for it; `STOP` ends it as Ctrl-C would end this process.

    Args:
        connection: the connection with the parent.
        values: the values of the job.
        work: does a job.
        cores: returns the number of cores that the job has.
        ends: returns whether it is to end after its round.
    """
    signal.signal(STOP, _stop)
    link = Link(connection)
    forward_output(link)

    def watch(line: RoundRow, done: int, total: int) -> None:
        link.send({"round": [dict(line), done, total]})
        if ends():
            raise _Stop

    try:
        result = work(values, watch, cores)
    except _Stop:
        return
    except BaseException as error:
        link.send({"error": error_values(error)})
    else:
        link.send({"end": dict(result)})


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _Stop
