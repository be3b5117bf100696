"""How the ranks of a launcher find each other: one connection from each of them to rank 0.

Rank 0 listens at a port of its own and says so, with a secret, in the launcher's store (torch's `TCPStore`).
Whoever knows the secret may connect; the store itself has no password, so the network must be trusted. All
connections go to rank 0, at the address that the launcher names: the other ranks need no open port and no
name.

A connection breaks if the other machine has been silent for `SILENCE` seconds: the kernels exchange probes
where nothing is sent, however long a visit takes.
"""

import contextlib
import hmac
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from partita.errors import RunFailed
from partita.executors.launch import Launch
from partita.executors.messages import exactly, receive, send

logger = logging.getLogger(__name__)

SILENCE = 15
"""Seconds without any sign of life after which a connection breaks."""
_WAIT = 900
"""Seconds in which all ranks must have started."""
_PATIENCE = 30
"""Seconds of waiting for other ranks after which this is said."""
_LOOK = 0.1
"""Seconds between two looks whether a rank that has connected is still there."""
_HELLO = 10
"""Seconds in which whoever connects must give the secret."""
_KEY = "partita/rank-0"
"""The key in the store under which rank 0 says where it listens."""
_SECRET = 32
"""Bytes of the secret."""
_OPTIONS = {
    "TCP_NODELAY": 1,
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 3,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": 1000 * SILENCE,
}
"""Options of every connection, as far as the system has them (all of them on Linux)."""


@dataclass(frozen=True)
class Guest:
    """A rank that has connected to rank 0."""

    rank: int
    host: str
    connection: socket.socket

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def title(self) -> str:
        """The rank as a sentence begins with it."""
        return f"Rank {self.rank} on {self.host}"


def gather(launch: Launch) -> list[Guest]:
    """Wait, as rank 0, until all other ranks have connected, and return them by rank.

    Raises:
        RunFailed: a rank is missing after `_WAIT` seconds, is gone before the others have come, or has come
            twice.
    """
    if launch.ranks == 1:
        return []
    deadline, secret = time.monotonic() + _WAIT, secrets.token_bytes(_SECRET)
    store, guests = _store(launch), dict[int, Guest]()
    with _listener() as listener, contextlib.ExitStack() as stack:
        store.set(_KEY, json.dumps([listener.getsockname()[1], secret.hex()]))
        arrived, warn_at = _admitted(listener, secret), time.monotonic() + _PATIENCE
        while len(guests) < launch.ranks - 1:
            if (guest := next(arrived)) is not None:
                stack.enter_context(guest.connection)
                _check_new(guest, launch, guests)
                guests[guest.rank] = guest
            _check_alive(guests.values())
            if time.monotonic() > deadline:
                raise RunFailed(_missing(launch, set(guests)))
            if time.monotonic() > warn_at:
                warn_at = deadline
                logger.warning("Waiting for ranks that have not started: %s.", _absent(launch, set(guests)))
        stack.pop_all()
    return [guests[rank] for rank in sorted(guests)]


def join(launch: Launch) -> socket.socket:
    """Return the connection of another rank to rank 0.

    Raises:
        RunFailed: rank 0 cannot be reached.
    """
    store = _store(launch)
    try:
        port, secret = json.loads(_interruptibly(lambda: store.get(_KEY), launch))
        connection = socket.create_connection((launch.address, port), timeout=_WAIT)
    except (OSError, DistError) as error:
        raise RunFailed(f"Rank {launch.rank} cannot reach rank 0 at {launch.address}: {error}.") from None
    _watch_over(connection)
    connection.sendall(bytes.fromhex(secret))
    send(connection, {"rank": launch.rank, "host": socket.gethostname()})
    return connection


def _store(launch: Launch) -> Any:
    """Return the launcher's store, a `TCPStore`, which rank 0 provides where the launcher does not."""
    wait = timedelta(seconds=_WAIT)
    try:
        return _interruptibly(
            lambda: next(rendezvous("env://", launch.rank, launch.ranks, timeout=wait))[0], launch
        )
    except (DistError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise RunFailed(
            f"Rank {launch.rank} of {launch.ranks} has not met the others at {launch.address}:{launch.port}: "
            f"{reason}"
        ) from None


def _interruptibly(wait: Callable[[], Any], launch: Launch) -> Any:
    """Return what `wait` returns, in another thread: an operation of torch's store does not end by Ctrl-C."""
    done: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((wait(), None))
        except Exception as error:
            done.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = done.get(timeout=_PATIENCE)
    except queue.Empty:
        others = "the other ranks" if launch.rank == 0 else "rank 0"
        logger.warning("Waiting for %s, at %s:%s.", others, launch.address, launch.port)
        result, error = done.get()
    if error is not None:
        raise error
    return result


def _listener() -> socket.socket:
    """Return a socket that listens at a free port, for IPv4 and where possible for IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _admitted(listener: socket.socket, secret: bytes) -> Iterator[Guest | None]:
    """Yield the ranks that connect, and None every now and then; a stranger keeps nobody waiting."""
    arrived: queue.SimpleQueue[Guest] = queue.SimpleQueue()

    def admit(connection: socket.socket) -> None:
        if (guest := _admit(connection, secret)) is not None:
            arrived.put(guest)

    listener.settimeout(_LOOK)
    while True:
        with contextlib.suppress(TimeoutError):
            threading.Thread(target=admit, args=(listener.accept()[0],), daemon=True).start()
        while not arrived.empty():
            yield arrived.get()
        yield None


def _admit(connection: socket.socket, secret: bytes) -> Guest | None:
    """Return who has connected; None, and the connection closed, for someone who is not a rank."""
    connection.settimeout(_HELLO)
    try:
        given = exactly(connection, _SECRET)
        hello = receive(connection) if hmac.compare_digest(given, secret) else None
    except OSError:
        hello = None
    if hello is None:
        connection.close()
        return None
    _watch_over(connection)
    return Guest(hello.values["rank"], hello.values["host"], connection)


def _check_new(guest: Guest, launch: Launch, guests: Mapping[int, Guest]) -> None:
    """Raise if a rank has come before, or is none of the launcher's."""
    if guest.rank in guests or not 0 < guest.rank < launch.ranks:
        known = guests.get(guest.rank, f"rank 0 of {launch.ranks}")
        raise RunFailed(f"Ranks must be numbered from 0 to {launch.ranks - 1}, got {guest} beside {known}.")


def _check_alive(guests: Iterable[Guest]) -> None:
    """Raise if a rank is gone. A rank sends nothing before it is asked to."""
    for guest in guests:
        try:
            guest.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
        except OSError:
            pass
        raise RunFailed(f"{guest.title} is gone before all ranks have started.")


def _watch_over(connection: socket.socket) -> None:
    """Let a connection break once the other machine is silent."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _missing(launch: Launch, present: set[int]) -> str:
    absent = _absent(launch, present)
    return f"Not all of the {launch.ranks} ranks have started within {_WAIT} seconds: {absent} missing."


def _absent(launch: Launch, present: set[int]) -> str:
    return ", ".join(str(rank) for rank in range(1, launch.ranks) if rank not in present)
