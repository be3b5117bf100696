"""Processes forked on demand, by a process that was forked early.

Forking a process that has threads is not safe: a lock that another thread holds stays locked in the child for
ever. A run's process has threads, of libraries, the progress display and watchers, and must start processes
long after that, in place of those that were killed. So a `Nursery` is forked once, at the beginning, and
forks children later, which see everything as it was when the nursery was forked, functions and closures
included. None of them touches what a display may have locked: they have output streams of their own.

Whatever ends the process that entered the nursery, SIGKILL included, also ends the nursery and its children.
"""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from partita.durable import leave_locks
from partita.errors import RunFailed
from partita.executors.messages import receive, send

Serve = Callable[[socket.socket, dict[str, Any]], None]
"""The work of a child: it gets its end of a connection with the parent, and the values given to `spawn`."""

IS_SUPPORTED = hasattr(os, "memfd_create")
"""Whether this system can have such processes, and memory that they share: Linux can."""

_PR_SET_PDEATHSIG = 1
_PATIENCE = 1.0
"""Seconds that a child whose connection is closed has to end by itself."""


@dataclass(frozen=True)
class Child:
    """A process that the nursery has forked."""

    pid: int
    connection: socket.socket
    """The parent's end of the connection; the child's end is closed when the child ends, however it does."""
    _wait: Callable[[int], int]

    def kill(self) -> None:
        """Kill the child; it does no harm if it has ended, as long as `exit_reason` was not called."""
        os.kill(self.pid, signal.SIGKILL)

    def exit_reason(self) -> str:
        """Wait for the child to end, close the connection and say how it ended; to be called once.

        A child that does not end is killed.
        """
        self.connection.close()
        code = self._wait(self.pid)
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Nursery:
    """A small process that forks children which run `serve(connection, values)`, each on one thread.

    It is a context manager, to be entered by the main thread, as early as possible. At the end all children
    are killed. Calls must not overlap: one thread at a time may use it. Ctrl-C at a terminal and SIGTERM,
    which may be sent to all processes, are left to the parent.

    Args:
        serve: the work of each child. What it raises is printed, and ends the child with exit code 1; a
            connection that the parent has closed ends it without a word.
        orphaned: called in the nursery where the parent has ended without leaving it, even if by SIGKILL.
    """

    def __init__(self, serve: Serve, orphaned: Callable[[], None] = lambda: None) -> None:
        self._serve = serve
        self._orphaned = orphaned
        self._pid = 0
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair()
        parent = os.getpid()
        self._pid = _fork()
        if not self._pid:
            self._control.close()
            _run_forked(
                lambda: _tend(theirs, self._serve, self._orphaned, parent),
                parent=parent,
                at_its_end=signal.SIGTERM,
            )
        theirs.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill all children, wait until they and the nursery are gone, and close all connections."""
        with contextlib.suppress(OSError):
            send(self._control, {"end": True})
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        for connection in self._connections:
            connection.close()

    def spawn(self, values: dict[str, Any]) -> Child:
        """Fork a child with some JSON values and return it.

        Raises:
            RunFailed: the system allows no further process, or has ended the nursery.
        """
        pid = self._ask({"spawn": values})
        connection = socket.socket(fileno=receive_descriptor(self._control))
        self._connections = [each for each in self._connections if each.fileno() >= 0]
        self._connections.append(connection)
        return Child(pid, connection, lambda pid: self._ask({"wait": pid}))

    def _ask(self, request: dict[str, Any]) -> int:
        """Send a request to the nursery and return its answer."""
        try:
            send(self._control, request)
            message = receive(self._control)
        except OSError:
            message = None
        if message is None:
            raise RunFailed("The process that starts worker processes was killed.")
        if "error" in message.values:
            raise RunFailed(f"No further worker process can be started: {message.values['error']}.")
        return message.values["answer"]


def send_descriptor(connection: socket.socket, descriptor: int) -> None:
    """Send a file descriptor to another process on this machine."""
    socket.send_fds(connection, [b"\0"], [descriptor])


def receive_descriptor(connection: socket.socket) -> int:
    """Return a file descriptor that another process has sent.

    Raises:
        ConnectionError: the other process is gone.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not descriptors:
        raise ConnectionError("The connection was closed before a file descriptor arrived.")
    return descriptors[0]


def _tend(control: socket.socket, serve: Serve, orphaned: Callable[[], None], parent: int) -> None:
    """Fork children and wait for them as the parent asks, until it asks for the end or ends itself.

    A signal that ends processes is the parent's to handle as long as it is there.
    """
    children: set[int] = set()
    ending = [signal.SIGTERM] if _ignores(signal.SIGHUP) else [signal.SIGTERM, signal.SIGHUP]

    def clean_up(number: int = 0, frame: FrameType | None = None) -> None:
        if number and os.getppid() == parent:
            return
        for each in ending:
            signal.signal(each, signal.SIG_IGN)
        _kill(children)
        orphaned()
        os._exit(0)

    for number in ending:
        signal.signal(number, clean_up)
    with contextlib.suppress(OSError):
        while (message := receive(control)) is not None:
            match message.values:
                case {"spawn": values}:
                    _spawn(control, serve, values, children)
                case {"wait": pid}:
                    children.remove(pid)
                    send(control, {"answer": os.waitstatus_to_exitcode(_wait(pid))})
                case _:
                    _kill(children)
                    return
    clean_up()


def _ignores(number: signal.Signals) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def _spawn(control: socket.socket, serve: Serve, values: dict[str, Any], children: set[int]) -> None:
    """Fork a child, add it to the children in place, and send its number and connection to the parent."""
    theirs, own = socket.socketpair()
    nursery = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        send(control, {"error": error.strerror})
        return
    if not pid:
        control.close()
        theirs.close()
        _run_forked(lambda: serve(own, values), parent=nursery, at_its_end=signal.SIGKILL)
    own.close()
    children.add(pid)
    send(control, {"answer": pid})
    send_descriptor(control, theirs.fileno())
    theirs.close()


def _wait(pid: int) -> int:
    """Wait for a child, which is killed where it takes too long, and return its status."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _kill(children: set[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _fork() -> int:
    """Fork this process, without output in its buffers, which both would print."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with warnings.catch_warnings():
        # Libraries have started threads by now. None of them holds a lock: this thread called them last.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _renew_streams() -> None:
    """Replace the output streams: a thread of the parent, which is not here, may have locked the old ones."""
    _OLD_STREAMS.extend((sys.stdout, sys.stderr))
    for number, name in ((1, "stdout"), (2, "stderr")):
        with contextlib.suppress(OSError):
            stream = os.fdopen(number, "w", buffering=1, closefd=False, errors="backslashreplace")
            setattr(sys, name, stream)


_OLD_STREAMS: list[Any] = []
"""Streams that must not be closed, since that would wait for their locks."""


def _reset_signals() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, which may get them too, and let SIGHUP end the process.

    Processes that this one starts end by SIGTERM.
    """
    own = os.getpid()

    def leave_to_parent(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave_to_parent)
    if not _ignores(signal.SIGHUP):  # As it is under `nohup`.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _run_forked(work: Callable[[], None], *, parent: int, at_its_end: signal.Signals) -> None:
    """Do the work of a process that was just forked, and end it, without anything else that Python has to do.

    `at_its_end` is the signal that the process gets when its parent ends.
    """
    code = 1
    try:
        torch.set_num_threads(1)  # First of all: with more threads, it would wait for the parent's for ever.
        gc.freeze()  # Looking for garbage among the parent's objects would copy the memory that they are in.
        _renew_streams()
        _reset_signals()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, at_its_end)
        if os.getppid() == parent:  # Otherwise it has ended before it was said what to do then.
            leave_locks()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            with contextlib.suppress(ConnectionError):
                work()
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
