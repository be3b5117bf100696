"""The server as devices see it: who may take part, and the answer to each."""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from partita.deploy.building import differing
from partita.executors.desk import Desk, post_values
from partita.protocol import DeviceId

CONNECTED = 90.0
"""Seconds since its last request for which a device counts as connected."""


class Hub:
    """The devices that have asked, and the answers to them; used by two threads.

    Args:
        run: the id of the run, random, by which devices keep runs apart.
        computes: digests of all that a device must compute with, by name.
        desk: the open orders.
    """

    def __init__(self, run: str, computes: Mapping[str, str], desk: Desk) -> None:
        self.run = run
        self.computes = computes
        self.desk = desk
        self.is_over = False
        """Whether the run is finished; late devices may still be onboarded."""
        self.onboarding: tuple[DeviceId, ...] = ()
        """The late devices that are onboarded now."""
        self._changed = threading.Condition()
        self._seen: dict[DeviceId, float] = {}
        self._refused: dict[DeviceId, str] = {}
        self._finished: set[DeviceId] = set()
        self._dismissed: set[DeviceId] = set()

    def refusal(self, device: DeviceId, values: Any) -> str | None:
        """Return why a device cannot take part, None if it can, which is remembered.

        Args:
            device: the device.
            values: its request, which may be any JSON value.
        """
        theirs = values.get("computes") if isinstance(values, dict) else None
        if not isinstance(theirs, dict):
            reason = "The request does not say what the device computes with."
        elif names := differing(self.computes, theirs):
            reason = (
                f"The device computes with another {_listed(names)} than the server: both sides need the "
                "same config, derived values and code."
            )
        else:
            reason = None
        with self._changed:
            if reason is None:
                self._seen[device] = time.time()
                self._refused.pop(device, None)
            else:
                self._refused[device] = reason
            self._changed.notify_all()
        return reason

    def message(self, device: DeviceId) -> dict[str, Any]:
        """Return the answer to a device: an order, to wait, or that the run is over.

        What the device learns of its rounds comes last: it must be at least as new as the rest, because a
        device that has an order, or is done, drops the personal part of a round that was not counted.
        """
        post = self.desk.find(device)
        with self._changed:
            is_over = device in self._finished
        order = {} if post is None else post_values(post, self.desk.tensors)
        kind = "order" if post is not None else "done" if is_over else "wait"
        told = self.desk.told(device)
        return {"kind": kind, "run": self.run, "computes": dict(self.computes), **told, **order}

    def dismiss(self, device: DeviceId) -> None:
        """Record that a device knows that the run is over."""
        with self._changed:
            self._dismissed.add(device)
            self._changed.notify_all()

    def joined(self) -> list[DeviceId]:
        """Return all devices that take part or have, in the order of their ids."""
        with self._changed:
            return sorted(self._seen)

    def connected(self) -> list[DeviceId]:
        """Return the devices that have asked lately."""
        with self._changed:
            return sorted(device for device, seen in self._seen.items() if time.time() - seen < CONNECTED)

    def refused(self) -> dict[DeviceId, str]:
        """Return the devices that cannot take part, with reasons."""
        with self._changed:
            return dict(self._refused)

    def last_seen(self) -> dict[DeviceId, float]:
        """Return when each device has last asked, in seconds since 1970."""
        with self._changed:
            return dict(self._seen)

    def wait_for(self, count: int) -> list[DeviceId]:
        """Wait until so many devices have joined, and return them in the order of their ids."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._seen) >= count)
        return self.joined()

    def finish(self, devices: Collection[DeviceId]) -> None:
        """Tell devices from now on that the run is over for them; others that ask have come late."""
        with self._changed:
            self.is_over = True
            self._finished |= set(devices)
        self.desk.wake(devices)

    def wait_for_late(self, seconds: float) -> list[DeviceId]:
        """Return the devices that have come late as soon as there are any.

        There are none if all others know that the run is over, or when so many seconds have passed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._late() or self._dismissed >= self._finished, timeout=seconds)
            return self._late()

    def unaware(self) -> list[DeviceId]:
        """Return the devices that do not know yet that the run is over for them."""
        with self._changed:
            return sorted(self._finished - self._dismissed)

    def _late(self) -> list[DeviceId]:
        return [device for device in self.connected() if device not in self._finished]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
