"""A device's link to the server: it dials out, through a proxy where the environment names one."""

import asyncio
import hashlib
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from partita.deploy.receiving import transfer_seconds
from partita.deploy.service import DEVICE_HEADER
from partita.errors import ConfigError
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

_POLL, _QUEUE = 60.0, 600.0
"""Seconds after which a request for an order is given up and tried again, and those that a transfer may wait
for its turn."""
_LATER = (408, 429)
"""Statuses of an answer, besides errors of the server, that say to try again: too slow, too many requests."""
_FIRST, _LONGEST = 0.5, 60.0
"""Seconds before the first new attempt, and the longest time between two."""
_MAX_MESSAGE = 2**24
"""The largest message of the server that is read, in bytes."""

Result = TypeVar("Result")


class Unreachable(Exception):
    """The server cannot be reached, or cannot answer now: later it may."""


class Rejected(Exception):
    """The server does not accept a request, and would not later."""


class Link:
    """Requests to the server, one at a time.

    Args:
        url: the server's address, `https://HOST:PORT`.
        device: the device's id.
        context: the device's side of TLS; None: plain HTTP, which never goes through a proxy.

    Raises:
        ConfigError: the environment names a proxy that cannot be used.
    """

    def __init__(self, url: str, device: DeviceId, context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {DEVICE_HEADER: quote(device, safe=""), "Accept-Encoding": "identity"}
        self._context = context
        self._proxy = proxy_for(url) if context is not None else None
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
        seconds = _QUEUE + transfer_seconds(size)
        content = self._request("GET", f"/v1/tensors/{digest}", None, seconds, size)
        if hashlib.sha256(content).hexdigest() != digest:
            raise Unreachable("what arrived has another digest than the order names")
        return content

    def reply(self, nonce: str, content: bytes) -> bool:
        """Send the reply to an order and return whether it counts; it does not if it is repeated.

        Raises:
            Unreachable: try again later.
            Rejected: the reply is refused, or late.
        """
        seconds = _QUEUE + transfer_seconds(len(content))
        answer = self._request("POST", f"/v1/replies/{nonce}", content, seconds, _MAX_MESSAGE)
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
        session = self._session = self._session or self._new_session()
        # Headers of the session would also go to the proxy, in plain text.
        options: dict[str, Any] = {"headers": self._headers, "timeout": aiohttp.ClientTimeout(total=seconds)}
        if self._proxy is not None:
            options |= {"proxy": self._proxy.url, "proxy_headers": self._proxy.headers}
        async with session.request(
            verb, f"{self._url}{path}", data=body, allow_redirects=False, **options
        ) as response:
            if response.status >= 300:  # The reason may be longer than what was asked for.
                largest = _MAX_MESSAGE
            pieces, size = list[bytes](), 0
            while piece := await response.content.read(largest + 1 - size):
                pieces.append(piece)
                if (size := size + len(piece)) > largest:
                    raise Unreachable(f"the answer has more than {largest} bytes")
            content = b"".join(pieces)
            if response.status >= 500 or response.status in _LATER:
                raise Unreachable(f"it answers with the status {response.status}")
            if response.status >= 300:
                raise Rejected(_message(content).get("error") or f"The status is {response.status}.")
            return content

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._context if self._context is not None else True)
        # Not `trust_env`, which also sends the passwords in ~/.netrc. Nothing is decompressed: a few bytes
        # could become any number of them.
        return aiohttp.ClientSession(connector=connector, auto_decompress=False)


def _message(content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise Unreachable("what answers is not a Partita server")
    return values


def persistently(attempt: Callable[[], Result], sleep: Callable[[float], None] = time.sleep) -> Result:
    """Try a request until the server can be reached, however long that takes.

    The time between attempts grows, and is random, so that devices do not all come back at once.
    """
    failed = 0
    while True:
        try:
            result = attempt()
        except Unreachable as error:
            if not failed:
                logger.warning("The server cannot be reached, and is tried again: %s.", error)
            delay = min(_LONGEST, _FIRST * 2 ** min(failed, 20))
            failed += 1
            sleep(delay * random.uniform(0.5, 1.0))
        else:
            if failed:
                logger.warning("The server can be reached again.")
            return result


@dataclass(frozen=True)
class Proxy:
    """A proxy through which a device reaches the server; it carries TLS and sees none of it."""

    url: URL
    headers: Mapping[str, str]
    """The password for the proxy, where it has one."""


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy that the environment names for an encrypted address, None if there is none.

    Raises:
        ConfigError: the proxy cannot be used.
    """
    address, named = URL(url), getproxies().get("https")
    if not named or proxy_bypass(f"{address.host}:{address.port}"):
        return None
    proxy = URL(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.host:
        raise ConfigError("`HTTPS_PROXY` must be an address such as http://HOST:PORT.")
    if not proxy.user:
        return Proxy(proxy, {})
    password = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
    return Proxy(proxy.with_user(None), {"Proxy-Authorization": password})


def check_url(url: str, *, insecure: bool) -> str:
    """Return the host in the address of a server.

    Raises:
        ConfigError: it is no address, or is not encrypted.
    """
    try:
        address = URL(url)
    except ValueError:
        raise ConfigError(f"`--server` must be an address such as https://HOST:PORT, got {url!r}.") from None
    scheme = "http" if insecure else "https"
    if address.scheme != scheme or not address.host:
        raise ConfigError(f"`--server` must be an address such as {scheme}://HOST:PORT, got {url!r}.")
    return address.host
