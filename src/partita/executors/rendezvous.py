"""How the ranks of a launcher find each other: one connection from each of them to rank 0.

Rank 0 listens at a port of its own and says so, with a secret, in the launcher's store (torch's `TCPStore`).
Whoever knows the secret may connect; the store itself has no password, so the network must be trusted. All
connections go to rank 0, at the address that the launcher names: the other ranks need no open port and no
name.

A connection breaks if the other machine has been silent for `SILENCE` seconds: the kernels exchange probes
where nothing is sent, however long a visit takes.
"""

import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistError
from torch.distributed.rendezvous import rendezvous

from partita.errors import RunFailed
from partita.executors.launch import Launch
from partita.executors.messages import receive, send

SILENCE = 15
"""Seconds without any sign of life after which a connection breaks."""
_WAIT = 900
"""Seconds in which all ranks must have started."""
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


def gather(launch: Launch) -> list[Guest]:
    """Wait, as rank 0, until all other ranks have connected, and return them by rank.

    Raises:
        RunFailed: a rank is missing after `_WAIT` seconds.
    """
    if launch.ranks == 1:
        return []
    deadline, secret = time.monotonic() + _WAIT, secrets.token_bytes(_SECRET)
    store = _store(launch)
    with _listener() as listener:
        store.set(_KEY, json.dumps([listener.getsockname()[1], secret.hex()]))
        guests: dict[int, Guest] = {}
        while len(guests) < launch.ranks - 1:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                guest = _admit(listener.accept()[0], secret)
            except TimeoutError:
                raise RunFailed(_missing(launch, set(guests))) from None
            if guest is not None:
                guests[guest.rank] = guest
    return [guests[rank] for rank in sorted(guests)]


def join(launch: Launch) -> socket.socket:
    """Return the connection of another rank to rank 0.

    Raises:
        RunFailed: rank 0 cannot be reached.
    """
    store = _store(launch)
    try:
        port, secret = json.loads(store.get(_KEY))
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
        return next(rendezvous("env://", launch.rank, launch.ranks, timeout=wait))[0]
    except (DistError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise RunFailed(
            f"Rank {launch.rank} of {launch.ranks} has not met the others at {launch.address}:{launch.port}: "
            f"{reason}"
        ) from None


def _listener() -> socket.socket:
    """Return a socket that listens at a free port, for IPv4 and where possible for IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _admit(connection: socket.socket, secret: bytes) -> Guest | None:
    """Return who has connected; None, and the connection closed, for someone who is not a rank."""
    connection.settimeout(_HELLO)
    try:
        given = connection.recv(_SECRET, socket.MSG_WAITALL)
        hello = receive(connection) if hmac.compare_digest(given, secret) else None
    except OSError:
        hello = None
    if hello is None:
        connection.close()
        return None
    _watch_over(connection)
    return Guest(hello.values["rank"], hello.values["host"], connection)


def _watch_over(connection: socket.socket) -> None:
    """Let a connection break once the other machine is silent."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _missing(launch: Launch, present: set[int]) -> str:
    absent = ", ".join(str(rank) for rank in range(1, launch.ranks) if rank not in present)
    return f"Not all of the {launch.ranks} ranks have started within {_WAIT} seconds: {absent} missing."
