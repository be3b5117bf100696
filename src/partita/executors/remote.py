"""Devices on other machines: the server's executor, whatever carries its orders.

It talks to nobody itself: it opens orders on the desk, from which they are carried to devices, over HTTPS or
by Flower, and yields the answers that are handed in there. Without a deadline a round waits until
every device has answered.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from partita.errors import ConfigError
from partita.executors.desk import Desk
from partita.executors.exchange import exchanges_of
from partita.executors.replies import check_can_change
from partita.protocol import DeviceId, Failure, Order, Reply, Tally


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a round waits for its devices."""

    deadline: float = 0.0
    """Seconds after which a device that has not answered misses its round; 0: it is waited for."""
    min_devices: int = 1
    """A round that has fewer answers at its deadline goes on until it has so many."""

    def __post_init__(self) -> None:
        if not 0 <= self.deadline < float("inf"):
            raise ValueError(f"`deadline` must be a finite number, 0 or above, got {self.deadline!r}.")
        if self.min_devices < 1:
            raise ValueError(f"`min_devices` must be at least 1, got {self.min_devices}.")


class RemoteExecutor:
    """Carries out orders on other machines.

    Args:
        desk: where orders lie and replies are handed in.
        devices: the devices of the run.
        metrics: the names of the task's metrics.
        patience: how long a round waits.
        committed: called when devices have to be told something new, such as that a round is committed.
    """

    def __init__(
        self,
        desk: Desk,
        devices: Sequence[DeviceId],
        metrics: Iterable[str],
        patience: Patience,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._desk = desk
        self._devices = devices
        self._metrics = tuple(metrics)
        self._patience = patience
        self._committed = committed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Withdraw the orders that are open."""
        self._desk.close()

    def devices(self) -> Sequence[DeviceId]:
        """Return the devices of the run."""
        return self._devices

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Open the orders for devices, and yield their answers as they arrive."""
        orders = list(orders)
        for some in exchanges_of(orders):
            try:
                check_can_change(some[0].shared)
            except ValueError as error:
                raise ConfigError(str(error)) from None
            self._desk.open(some, self._metrics, cohort=len(orders))
            yield from self._answers(len(some))

    def _answers(self, count: int) -> Iterator[Reply | Failure]:
        """Yield answers until all orders have one, or the deadline has passed."""
        limit, given = self._patience.deadline, 0
        end = time.monotonic() + limit
        while given < count:
            is_enough = given >= min(self._patience.min_devices, count)
            timeout = max(end - time.monotonic(), 0) if limit and is_enough else None
            if (answer := self._desk.next_answer(timeout)) is None:
                break
            yield answer
            given += 1
        missing = self._desk.close()
        while (answer := self._desk.next_answer(0)) is not None:  # They came in the last moment.
            yield answer
        for device in missing:
            yield Failure(device=device, reason=f"There was no reply in {limit:g} seconds.")

    def close(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Record which devices were counted: each learns it with the next message."""
        self._desk.settle(label, counted)
        self._committed()

    def restore(self, label: str) -> None:
        """Record that devices go back to a round: each learns it before its next order."""
        self._desk.restore(label)
        self._committed()
