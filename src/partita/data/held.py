"""The examples of the devices that were visited last: decoding them can take as long as training on them."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from sys import getsizeof
from typing import Any

from torch import Tensor

from partita.protocol import DeviceId

_MOST = 256_000_000
"""Bytes that are held at a time."""
Key = tuple[DeviceId, str]
"""A device and a side."""


class Held:
    """Examples by device and side, up to a number of bytes; those that were not asked for longest go first.

    >>> held = Held()
    >>> held.get(("ada", "train"), lambda: [1, 2]), held.get(("ada", "train"), lambda: [3])
    ([1, 2], [1, 2])
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._held: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key, make: Callable[[], Any]) -> Any:
        """Return what is held, made where it is not."""
        if key not in self._held:
            made = make()
            self._held[key] = made, bytes_of(made)
            self._bytes += self._held[key][1]
            while self._bytes > self._most and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
        self._held.move_to_end(key)
        return self._held[key][0]


def bytes_of(value: Any) -> int:
    """Return about how many bytes examples take: their tensors, and what else they are made of."""
    if isinstance(value, Tensor):
        return value.nbytes
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
    return getsizeof(value) + sum(map(bytes_of, parts))
