"""Unseen devices: the share of devices that no training sees, chosen by a hash of their ids.

The choice depends on nothing but the id and the share. So it is the same for all seeds, runs and searches,
and adding devices never moves an old one.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import overload

import numpy as np
import pyarrow as pa

from partita.protocol import DeviceId


class SelectedIds(Sequence[DeviceId]):
    """Some of many device ids, in their order; it holds their positions, 8 bytes each.

    >>> some = SelectedIds(["a", "b", "c"], [0, 2])
    >>> some[1], some[:2], len(some)
    ('c', ['a', 'c'], 2)
    """

    def __init__(self, ids: Sequence[DeviceId], positions: Sequence[int]) -> None:
        self._ids = ids
        self._positions = array("q", positions)

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, position: int) -> DeviceId: ...
    @overload
    def __getitem__(self, position: slice) -> list[DeviceId]: ...
    def __getitem__(self, position: int | slice) -> DeviceId | list[DeviceId]:
        """Return the id at a position, or the ids of a slice."""
        if isinstance(position, slice):
            return [self._ids[at] for at in self._positions[position]]
        return self._ids[self._positions[position]]


def is_unseen(device: DeviceId, share: float) -> bool:
    """Return whether a device belongs to the share that no training sees.

    >>> [is_unseen("ann", share) for share in (0.0, 0.5, 0.9)]
    [False, True, True]
    """
    # Not the plain hash of the id: `task.devices` takes the devices with the smallest ones.
    digest = hashlib.sha256(f"unseen\0{device}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def are_seen(ids: pa.Array, share: float) -> np.ndarray:
    """Return whether each device is in training."""
    if not share:
        return np.ones(len(ids), bool)
    return np.array([not is_unseen(device.as_py(), share) for device in ids], bool)


def divide(ids: Sequence[DeviceId], share: float) -> tuple[Sequence[DeviceId], Sequence[DeviceId]]:
    """Return the seen and the unseen devices, each in the order of `ids`.

    Raises:
        ValueError: all devices are unseen, or `share` is above 0 and none is.
    """
    if not share:
        return ids, ()
    positions = array("q"), array("q")
    for position, device in enumerate(ids):
        positions[is_unseen(device, share)].append(position)
    seen, unseen = (SelectedIds(ids, some) for some in positions)
    if not seen:
        raise ValueError(
            f"`evaluate.unseen` = {share} leaves no device to train on: the hashes of their ids make all "
            f"{len(ids)} unseen. Use a smaller share."
        )
    if not unseen:
        raise ValueError(
            f"`evaluate.unseen` = {share} leaves none of the {len(ids)} devices unseen, by the hashes of "
            "their ids. Use a larger share, or 0."
        )
    return seen, unseen
