"""The other ranks as rank 0 sees them: what it sends to each, what they answer, and whether they are alive.

Each rank has two threads here, one that sends and one that receives, so that neither a slow connection nor a
long visit of rank 0 keeps the others waiting. If a rank is gone, all the others are told at once, and
`RankLost` is raised in the main thread, whatever it is doing.
"""

import contextlib
import errno
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from partita.errors import RankLost, described
from partita.executors.messages import Message, receive, send
from partita.executors.rendezvous import SILENCE, Guest
from partita.params import Params

_LOST = signal.SIGUSR2
"""The signal by which a thread of rank 0 interrupts the main thread."""
_GRACE = 10
"""Seconds that rank 0 has to end by itself once a rank is gone."""
_FAREWELL = 5
"""Seconds that other ranks have to end, once they are told, before rank 0 ends."""

_Outgoing = tuple[Mapping[str, Any], Mapping[str, Params]]
"""The values and the tensors of a message."""
_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""The errors of a connection to a machine that does not answer."""
Receive = Callable[["Peer", Message], None]
"""Handles a message of a rank, in the thread that receives from it."""


class Peer:
    """Another rank, as rank 0 sees it."""

    def __init__(self, guest: Guest) -> None:
        self.rank = guest.rank
        self.host = guest.host
        self.connection = guest.connection
        self.outbox: queue.SimpleQueue[_Outgoing | None] = queue.SimpleQueue()

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def title(self) -> str:
        """The rank as a sentence begins with it."""
        return f"Rank {self.rank} on {self.host}"

    def post(self, values: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> None:
        """Send a message, without waiting until it is sent."""
        self.outbox.put((values, tensors or {}))


class Peers:
    """All other ranks.

    Args:
        guests: their connections.
        host: the name of rank 0's own machine.
    """

    def __init__(self, guests: Sequence[Guest], host: str) -> None:
        self.all = [Peer(guest) for guest in guests]
        self.receiver: Receive = lambda peer, message: None
        """Gets their messages; whoever expects some sets it."""
        self._speakers = _speakers(self.all, host)
        self._lock = threading.Lock()
        self._is_over = False
        self._lost: str | None = None
        self._threads: list[threading.Thread] = []

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Exchange messages in this block, in which Ctrl-C, SIGTERM and the loss of a rank end the run."""
        for peer in self.all:
            for work in (self._send, self._receive):
                self._threads.append(threading.Thread(target=work, args=(peer,), daemon=True))
        handlers = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._interrupt, _LOST: self._raise_lost}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, handler)

    def end(self, code: int, line: str = "") -> None:
        """Let all other ranks end with an exit code, and wait a little until they have.

        Args:
            code: the exit code.
            line: printed once on each other machine.
        """
        with self._lock:
            told, self._is_over = self._is_over and self._lost is not None, True
        if code:
            _ignore_signals()
        if not told:
            self._dismiss(code, line)
        deadline = time.monotonic() + _FAREWELL
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _dismiss(self, code: int, line: str) -> None:
        for peer in self.all:
            peer.post({"kind": "end", "code": code, "line": line if peer.rank in self._speakers else ""})
            peer.outbox.put(None)

    def _send(self, peer: Peer) -> None:
        """Send what is posted to a rank, until nothing more will be."""
        try:
            while (item := peer.outbox.get()) is not None:
                send(peer.connection, *item)
        except Exception as error:
            self._lose(peer, error)

    def _receive(self, peer: Peer) -> None:
        """Hand on what a rank sends, until it ends."""
        try:
            while (message := receive(peer.connection)) is not None:
                self.receiver(peer, message)
            self._lose(peer, None)
        except Exception as error:
            self._lose(peer, error)

    def _lose(self, peer: Peer, error: Exception | None) -> None:
        """End the run, because a rank is gone, unless it is over."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._lost = f"{peer.title} is gone: {why_gone(error)}."
        self._dismiss(1, self._lost)
        threading.Thread(target=self._end_after_grace, daemon=True).start()
        signal.pthread_kill(threading.main_thread().ident or 0, _LOST)

    def _end_after_grace(self) -> None:
        """End this process, should its main thread not do so: it may be in a long operation."""
        threading.Event().wait(_GRACE)
        end_process(1, self._lost or "")

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise `KeyboardInterrupt`, once: torchrun sends SIGTERM after a Ctrl-C."""
        self._is_over = True
        _ignore_signals()
        raise KeyboardInterrupt

    def _raise_lost(self, number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise RankLost(self._lost)


def _ignore_signals() -> None:
    """Let this process end by itself: torchrun sends SIGTERM as soon as another rank has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def end_process(code: int, line: str) -> NoReturn:
    """End this process from any of its threads, after an error message if there is one."""
    with contextlib.suppress(OSError, ValueError):
        # The process's own streams: others may have replaced them.
        for stream, text in ((sys.__stdout__, ""), (sys.__stderr__, f"partita: {line}\n" if line else "")):
            if stream is not None:
                stream.write(text)
                stream.flush()
    os._exit(code)


def why_gone(error: Exception | None) -> str:
    """Return why a connection has ended."""
    if error is None or isinstance(error, ConnectionError):
        return "its process has ended"
    if isinstance(error, OSError) and error.errno in _SILENT:
        return f"its machine has been silent for {SILENCE} seconds"
    return f"its connection broke ({described(error)})"


def _speakers(peers: Sequence[Peer], host: str) -> set[int]:
    """Return the ranks that print an error: the first one on each machine but rank 0's."""
    first = {peer.host: peer.rank for peer in reversed(peers)}
    return {rank for machine, rank in first.items() if machine != host}
