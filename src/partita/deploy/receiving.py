"""Transfers of the server: in a limited time, and in limited memory for all devices together."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

_SILENCE = 60.0
"""Seconds without a byte after which a request is given up."""
_SLOWEST = 20_000
"""Bytes a second that a transfer must have."""
_PIECE = 2**18
"""Bytes that are handed to a connection at a time: it keeps a copy of what a device has not read yet."""
_FILES = 2**16
"""Open files that are enough: every device has a connection."""


def allow_connections() -> None:
    """Let this process open more files, as far as the system allows: the usual limit is 1,024."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if most == resource.RLIM_INFINITY else min(_FILES, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def transfer_seconds(size: int) -> float:
    """Return the seconds in which so many bytes must have arrived.

    >>> transfer_seconds(6_400_000)
    380.0
    """
    return _SILENCE + size / _SLOWEST


class Memory:
    """The memory for replies that are being received: where it is used up, further ones wait.

    Args:
        size: its size in bytes. A reply that is larger by itself takes all of it.
    """

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Take so many bytes in this block."""
        size = min(size, self._size)
        while size > self._free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._free -= size
        try:
            yield
        finally:
            self._free += size
            waiting, self._waiting = self._waiting, []
            for turn in waiting:
                if not turn.done():
                    turn.set_result(None)


async def received(request: web.Request, largest: int) -> bytes:
    """Return the content of a request; one that announces too much is not read at all.

    Raises:
        web.HTTPException: the request is too large, does not say how large it is, or is too slow.
        ConnectionResetError: the connection was lost before everything had arrived.
    """
    length = request.content_length
    if length is None:
        raise web.HTTPLengthRequired(reason="The request must say how long it is.")
    if length > largest:
        raise web.HTTPBadRequest(reason=f"The request has {length} bytes, more than {largest}.")
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(transfer_seconds(length)):
            while length:
                async with asyncio.timeout(_SILENCE):
                    piece = await request.content.read(length)
                if not piece:
                    raise ConnectionResetError("The connection was lost.")
                pieces.append(piece)
                length -= len(piece)
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason="The request has not arrived in time.") from None
    return b"".join(pieces)


async def sent(request: web.Request, content: bytes) -> web.StreamResponse:
    """Return the answer with some content, after sending it as fast as the device reads it.

    Raises:
        ConnectionResetError: the connection was lost, or the device is too slow.
    """
    response = web.StreamResponse(headers={"Content-Length": str(len(content))})
    await response.prepare(request)
    try:
        async with asyncio.timeout(transfer_seconds(len(content))):
            for begin in range(0, len(content), _PIECE):
                await response.write(content[begin : begin + _PIECE])
            await response.write_eof()
    except TimeoutError:
        raise ConnectionResetError("The device does not read its tensors in time.") from None
    return response
