"""Messages over a stream socket: JSON values, and groups of named tensors as safetensors bytes.

A message begins with the length of its head, a JSON value that has the values and the length of each group.
Nothing here is pickled, and no length is trusted beyond a bound.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from partita.params import Params, from_bytes, to_bytes

_LENGTH = 4
"""Bytes of the length of a head."""
_MAX_HEAD = 2**28
"""The largest head that is accepted, in bytes."""
_MAX_TENSORS = 2**36
"""The most tensors that one message may bring, in bytes."""


@dataclass(frozen=True)
class Message:
    """A message as it was received."""

    values: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]
    """The groups of tensors, by name."""


def send(
    connection: socket.socket, values: Mapping[str, Any], tensors: Mapping[str, Params] | None = None
) -> None:
    """Send a message.

    Args:
        connection: a stream socket in blocking mode.
        values: strings, numbers, booleans, None, and lists and mappings of them.
        tensors: groups of named tensors, by name.

    Raises:
        OSError: the other side is gone.
    """
    groups = {name: to_bytes(group) for name, group in (tensors or {}).items()}
    connection.sendall(encoded(values, {name: len(group) for name, group in groups.items()}))
    for group in groups.values():
        connection.sendall(group)


def encoded(values: Mapping[str, Any], lengths: Mapping[str, int] | None = None) -> bytes:
    """Return a message as bytes, without its tensors, of which it gives the length of each group."""
    lengths = lengths or {}
    head = json.dumps([values, lengths]).encode()
    if len(head) > _MAX_HEAD or sum(lengths.values()) > _MAX_TENSORS:
        raise ValueError(f"A message of {len(head)} + {sum(lengths.values())} bytes is too long to send.")
    return len(head).to_bytes(_LENGTH, "big") + head


def receive(connection: socket.socket) -> Message | None:
    """Return the next message; None where the other side has closed the connection after the last one.

    Raises:
        OSError: the connection broke; a `ConnectionError` where that was within a message, or what
            arrived is no message.
    """
    first = connection.recv(_LENGTH)
    if not first:
        return None
    start = first + exactly(connection, _LENGTH - len(first))
    values, lengths = _parsed(exactly(connection, _bounded(int.from_bytes(start, "big"), _MAX_HEAD)))
    _bounded(sum(lengths.values()), _MAX_TENSORS)
    groups = {name: exactly(connection, length) for name, length in lengths.items()}
    return Message(values, {name: from_bytes(group) for name, group in groups.items()})


def _parsed(head: bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values of a head, and the lengths of its groups."""
    try:
        values, lengths = json.loads(head)
    except (ValueError, TypeError):  # No JSON, or not two values.
        raise ConnectionError("What arrived is not a message.") from None
    sizes = list(lengths.values()) if isinstance(lengths, dict) else [-1]
    if not isinstance(values, dict) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ConnectionError("What arrived is not a message.")
    return values, lengths


def _bounded(length: int, largest: int) -> int:
    """Return a length that is not above a bound."""
    if length > largest:
        raise ConnectionError(f"What arrived is not a message: its length, {length}, is above {largest}.")
    return length


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return the next `count` bytes.

    Raises:
        OSError: the connection broke; a `ConnectionError` where it was closed before.
    """
    content = bytearray(count)
    view, filled = memoryview(content), 0
    while filled < count:
        received = connection.recv_into(view[filled:])
        if not received:
            raise ConnectionError("The connection was closed within a message.")
        filled += received
    return bytes(content)
