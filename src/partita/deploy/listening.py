"""The server's end of HTTPS: where it listens, and the service that carries the messages of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from partita.deploy.receiving import allow_connections
from partita.deploy.service import Service
from partita.deploy.serving import Server
from partita.deploy.status import StatusBoard
from partita.deploy.tls import Revocations, check_loopback, server_context


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the server listens."""

    host: str
    port: int
    """The port; 0: any free one."""
    insecure: bool = False
    """Plain HTTP, on this machine alone."""
    status: int | None = None
    """The port on this machine of the operator's page; None: there is none."""


@contextmanager
def serving(server: Server, at: Listening, board: StatusBoard | None = None) -> Iterator[Service]:
    """Answer the devices of a run in this block, with the keys in its home.

    Args:
        server: the run.
        at: where to listen.
        board: the content of the operator's page.
    """
    if at.insecure:
        check_loopback(at.host)
        context, revoked = None, None
    else:
        home = server.settings.home
        context, revoked = server_context(home), Revocations(home)
    allow_connections()
    service = Service(server.hub, at.host, at.port, context, revoked)
    if at.status is not None and board is not None:
        service.status = board, at.status
    with service:
        yield service
