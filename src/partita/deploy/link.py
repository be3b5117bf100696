"""A device's link to the server: it dials out, through a proxy where the environment names one."""

import asyncio
import hashlib
import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from partita.deploy.attempts import Rejected, Unreachable
from partita.deploy.service import DEVICE_HEADER
from partita.errors import ConfigError
from partita.protocol import DeviceId

_POLL, _TRANSFER = 60.0, 600.0
"""Seconds after which a request for an order, and a transfer of tensors, is given up and tried again."""
_MAX_MESSAGE = 2**24
"""The largest message of the server that is read, in bytes."""


class Link:
    """Requests to the server, one at a time.

    Args:
        url: the server's address, `https://HOST:PORT`.
        device: the device's id.
        context: the device's side of TLS; None: plain HTTP.
    """

    def __init__(self, url: str, device: DeviceId, context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {DEVICE_HEADER: quote(device, safe="")}
        self._context = context
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def poll(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for an order; the server may take its time.

        Raises:
            Unreachable: try again later.
            Rejected: the server does not hear this device.
        """
        content = self._request("POST", "/v1/poll", json.dumps(values).encode(), _POLL, _MAX_MESSAGE)
        return _message(content)

    def tensors(self, digest: str, size: int) -> bytes:
        """Return the tensors with a digest.

        Raises:
            Unreachable: try again later; what arrived was not what the order names.
            Rejected: the order is over.
        """
        content = self._request("GET", f"/v1/tensors/{digest}", None, _TRANSFER, size)
        if hashlib.sha256(content).hexdigest() != digest:
            raise Unreachable("what arrived has another digest than the order names")
        return content

    def reply(self, nonce: str, content: bytes) -> bool:
        """Send the reply to an order and return whether it counts; it does not if it is repeated.

        Raises:
            Unreachable: try again later.
            Rejected: the reply is refused, or late.
        """
        answer = self._request("POST", f"/v1/replies/{nonce}", content, _TRANSFER, _MAX_MESSAGE)
        return bool(_message(answer).get("counts"))

    def _request(self, verb: str, path: str, body: bytes | None, seconds: float, largest: int) -> bytes:
        try:
            return self._runner.run(self._exchange(verb, path, body, seconds, largest))
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unreachable(f"its certificate is not accepted ({error.certificate_error})") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": ")) from None

    async def _exchange(
        self, verb: str, path: str, body: bytes | None, seconds: float, largest: int
    ) -> bytes:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._context if self._context is not None else True)
            self._session = aiohttp.ClientSession(connector=connector, trust_env=True, headers=self._headers)
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with self._session.request(
            verb, f"{self._url}{path}", data=body, timeout=timeout, allow_redirects=False
        ) as response:
            content = await response.content.read(largest + 1)
            while len(content) <= largest and (more := await response.content.read(largest + 1)):
                content += more
            if len(content) > largest:
                raise Unreachable(f"the answer has more than {largest} bytes")
            if response.status >= 500:
                raise Unreachable(f"it answers with the status {response.status}")
            if response.status >= 300:
                raise Rejected(_message(content).get("error") or f"The status is {response.status}.")
            return content


def _message(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise Unreachable("what answers is not a Partita server")
    return values


def check_url(url: str, *, insecure: bool) -> str:
    """Return the host in the address of a server.

    Raises:
        ConfigError: it is no address, or is not encrypted.
    """
    from yarl import URL

    try:
        address = URL(url)
    except ValueError:
        raise ConfigError(f"`--server` must be an address such as https://HOST:PORT, got {url!r}.") from None
    scheme = "http" if insecure else "https"
    if address.scheme != scheme or not address.host:
        raise ConfigError(f"`--server` must be an address such as {scheme}://HOST:PORT, got {url!r}.")
    return address.host
