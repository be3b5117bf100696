"""The HTTPS service that devices ask: aiohttp in a thread beside the training loop.

Devices connect, never the server. A request for an order is held until there is one (long poll). Who asks is
what the certificate says. Nothing that arrives is read beyond the size that the open order allows.
"""

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from partita.deploy.hub import Hub
from partita.deploy.receiving import Memory, received, sent
from partita.deploy.status import FAREWELL, StatusBoard, served_status
from partita.deploy.tls import Revocations, device_of
from partita.errors import ConfigError
from partita.executors.replies import Refused
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

DEVICE_HEADER = "Partita-Device"
"""The header with the device's id, percent-encoded; with TLS the certificate must name the same."""
_POLL = 25.0
"""Seconds that a request for an order is held."""
_MAX_REQUEST = 2**16
"""The largest request for an order, in bytes."""
_MEMORY = 2**30
"""Bytes of the replies that are received at a time."""
_IDLE = 75.0
"""Seconds after which a connection without a whole request is closed."""

_Handler = Callable[[web.Request, DeviceId], Awaitable[web.StreamResponse]]


class Service:
    """Answers devices while this context is entered.

    Args:
        hub: what devices are told.
        host: the address to listen on.
        port: the port; 0: any free one.
        context: the server's side of TLS; None: plain HTTP, on this machine alone.
        revoked: the certificates that are revoked; None without TLS.
    """

    status: tuple[StatusBoard, int] | None = None
    """The operator's page and its port on this machine; set before entering."""

    def __init__(
        self,
        hub: Hub,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        revoked: Revocations | None,
    ) -> None:
        self.port = port
        self._hub = hub
        self._host = host
        self._context = context
        self._revoked = revoked
        self._events: dict[DeviceId, asyncio.Event] = {}
        self._uploads: dict[DeviceId, asyncio.Task[Any]] = {}
        self._memory = Memory(_MEMORY)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._started = threading.Event()
        self._problem: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="partita-service", daemon=True)

    def __enter__(self) -> Self:
        """Start to listen.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._thread.start()
        self._started.wait()
        if self._problem is not None:
            reason = self._problem.strerror
            raise ConfigError(f"Cannot listen on {self._host}:{self.port}: {reason}.")
        self._hub.desk.wake = self.wake
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop to listen."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def wake(self, devices: Iterable[DeviceId]) -> None:
        """Let waiting devices look again, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._set, list(devices))

    def _set(self, devices: list[DeviceId]) -> None:
        for device in devices:
            if device in self._events:
                self._events[device].set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._problem = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application()
        app.router.add_post("/v1/poll", self._identified(self._poll))
        app.router.add_get("/v1/tensors/{digest}", self._identified(self._tensors))
        app.router.add_post("/v1/replies/{nonce}", self._identified(self._reply))
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=FAREWELL,
            keepalive_timeout=_IDLE,
            auto_decompress=False,  # A few bytes could become any number of them.
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self.port, ssl_context=self._context, backlog=1024)
            await site.start()
            self.port = runner.addresses[0][1]
            async with AsyncExitStack() as stack:
                if self.status is not None:
                    await stack.enter_async_context(served_status(*self.status))
                self._started.set()
                await self._end.wait()
        finally:
            transports = [each.transport for each in runner.server.connections] if runner.server else []
            await runner.cleanup()
            for transport in transports:
                if transport is not None:
                    transport.abort()  # TLS would wait for the device to say goodbye.

    def _identified(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that knows which device asks, and refuses everybody else."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                device = self._device(request)
            except PermissionError as error:
                logger.warning("A request was refused: %s", error)
                return _problem(403, str(error))
            except ConfigError as error:  # The list of revoked certificates is being replaced, or is gone.
                logger.warning("A request cannot be answered: %s", error)
                return _problem(503, "The server cannot look up revoked certificates.")
            return await handler(request, device)

        return handle

    def _device(self, request: web.Request) -> DeviceId:
        claimed = unquote(request.headers.get(DEVICE_HEADER, ""))
        if self._revoked is None:
            if not claimed:
                raise PermissionError("The request names no device.")
            return claimed
        connection = request.transport and request.transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(binary_form=True) if connection else None
        device = device_of(certificate, self._revoked)
        if claimed and claimed != device:
            raise PermissionError(f"The certificate of device {device!r} does not speak for {claimed!r}.")
        return device

    async def _poll(self, request: web.Request, device: DeviceId) -> web.StreamResponse:
        """Answer with an order as soon as there is one, or after a while without one."""
        try:
            values = json.loads(await received(request, _MAX_REQUEST))
        except (ValueError, RecursionError):
            return _problem(400, "The request is not valid JSON.")
        if (reason := self._hub.refusal(device, values)) is not None:
            return web.json_response({"kind": "refused", "reason": reason})
        event = self._events[device] = asyncio.Event()
        loop = asyncio.get_running_loop()
        end = loop.time() + _POLL
        while True:
            event.clear()
            message = self._hub.message(device)
            left = end - loop.time()
            if message["kind"] != "wait" or left <= 0 or self._events.get(device) is not event:
                if message["kind"] == "done":
                    self._hub.dismiss(device)
                return web.json_response(message)
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                continue

    async def _tensors(self, request: web.Request, device: DeviceId) -> web.StreamResponse:
        """Answer with a group of tensors of the device's own order."""
        digest = request.match_info["digest"]
        post = self._hub.desk.find(device)
        content = self._hub.desk.tensors(digest) if post and digest in post.tensors.values() else None
        if content is None:
            return _problem(404, "No open order of this device has such tensors.")
        return await sent(request, content)

    async def _reply(self, request: web.Request, device: DeviceId) -> web.StreamResponse:
        """Take the reply to an order, after checking it; one that is answered already is not read."""
        desk = self._hub.desk
        try:
            post = desk.named(device, request.match_info["nonce"])
            if not post.is_open:
                return web.json_response({"counts": False})
            largest = post.expected.largest
            with self._only_upload(device):
                async with self._memory.taken(min(request.content_length or 0, largest)):
                    try:
                        content = await received(request, largest)
                    except web.HTTPException as error:
                        desk.fail(post, error.reason)
                        raise
                    counts = await asyncio.to_thread(desk.hand_in, post, content)
        except Refused as error:
            return _problem(409, str(error))
        return web.json_response({"counts": counts})

    @contextmanager
    def _only_upload(self, device: DeviceId) -> Iterator[None]:
        """End an earlier upload of the device: its connection is lost, or it wants to take all memory."""
        own = asyncio.current_task()
        assert own is not None
        if (before := self._uploads.get(device)) is not None:
            before.cancel()
        self._uploads[device] = own
        try:
            yield
        finally:
            if self._uploads.get(device) is own:
                del self._uploads[device]


def _problem(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)
