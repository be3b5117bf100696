"""A service on loopback with mutual TLS, and the homes of its devices."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from partita.deploy import keys, tls
from partita.deploy.hub import Hub
from partita.deploy.link import Link
from partita.deploy.service import Service
from partita.executors.desk import Desk
from partita.protocol import Order, Pace, Reply, Stage, Start, Update

SHARED = {"u": torch.arange(3.0)}
COMPUTES = {"task": "a" * 64, "model": "b" * 64}
TRAIN = {"train": {"examples": 2, "loss": 0.5, "start_loss": 0.5}}


def order_for(device: str) -> Order:
    pace = Pace(lr=0.1, epochs=1)
    start = Start(digest="0" * 64, personal={"v": torch.ones(2)}, frozen="0" * 64)
    return Order(
        stage=Stage.PERSONALIZED,
        round=0,
        device=device,
        work=Update(personal=pace, shared=pace),
        shared=SHARED,
        start=start,
    )


def reply_of(device: str, **changes: Any) -> Reply:
    return Reply(
        **{"device": device, "weight": 2, "change": {"u": torch.ones(3)}, "metrics": TRAIN, **changes}
    )


@dataclass
class Site:
    """A service on loopback, and the homes of its devices."""

    folder: Path
    desk: Desk
    hub: Hub
    service: Service

    @property
    def port(self) -> int:
        """The port of the service."""
        return self.service.port

    def context(self, home: str) -> ssl.SSLContext:
        return tls.device_context(self.folder / home)

    def link(self, device: str, home: str = "") -> Link:
        return Link(f"https://localhost:{self.port}", device, self.context(home or device))

    def request(self, context: ssl.SSLContext, verb: str, path: str, **options: Any) -> tuple[int, bytes]:
        """Send one request and return the status and the answer."""
        connection = http.client.HTTPSConnection("localhost", self.port, context=context, timeout=20)
        try:
            connection.request(verb, path, **options)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def make_homes(folder: Path) -> None:
    """Fill a folder with an authority, another one, a server and some devices, one of them revoked."""
    for ca in ("ca", "other"):
        keys.make_ca(folder / ca, ca)
    keys.make_server(folder / "ca", folder / "server", ["localhost"], days=2)
    for home, device, ca in (
        ("ann", "ann", "ca"),
        ("bob", "bob", "ca"),
        ("eve", "eve", "ca"),
        ("stranger", "ann", "other"),
    ):
        request = keys.make_request(folder / home, device)
        certificate = keys.sign_request(folder / ca, request, device, days=2)
        (folder / home / keys.DEVICE_CERTIFICATE).write_bytes(certificate)
        (folder / home / keys.CA_CERTIFICATE).write_bytes((folder / "ca" / keys.CA_CERTIFICATE).read_bytes())
    keys.revoke(folder / "ca", "eve")
    (folder / "server" / keys.REVOKED).write_bytes((folder / "ca" / keys.REVOKED).read_bytes())


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Answer devices with homes in a folder in this block."""
    desk = Desk()
    hub = Hub("f" * 32, COMPUTES, desk)
    home = folder / "server"
    with Service(hub, "127.0.0.1", 0, tls.server_context(home), tls.Revocations(home)) as service:
        yield Site(folder, desk, hub, service)


def asked(site: Site, *devices: str) -> str:
    """Open an order for each device, and return the nonce of the first."""
    site.desk.open([order_for(device) for device in devices], ["accuracy"], cohort=len(devices))
    return site.hub.message(devices[0])["nonce"]
