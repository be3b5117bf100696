"""Devices in worker processes of this machine, with the results of a run in one process, bit for bit.

Each worker has one thread, and models and examples of its own. Workers read the shared part from memory that
all share, save personal parts themselves, and add up the changes of their devices; the sums are integers, so
that it makes no difference which worker visits which device.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, Self

from partita.executors.dispatch import Dispatch
from partita.executors.exchange import exchanges_of
from partita.executors.output import Replay
from partita.executors.pool import Pool
from partita.executors.processes import Nursery
from partita.executors.serial import SerialExecutor
from partita.executors.visits import Visits
from partita.executors.worker import Worker
from partita.protocol import DeviceId, Failure, Order, Reply, Tally

_SIZES = 10_000
"""The most devices whose sizes are remembered."""


class WorkersExecutor:
    """Visits devices in several processes, or in this one as long as there is to be only one.

    Args:
        serial: the executor for visits in this process; workers begin with copies of what it has.
        processes: returns the number of processes to use, before each exchange.
        timeout: seconds that a visit may take; 0: no limit. With a limit no visit is in this process, where
            it could not be ended.
        orphaned: called, in another process, if this one ends without leaving the executor.
    """

    def __init__(
        self,
        serial: SerialExecutor,
        processes: Callable[[], int],
        *,
        timeout: float = 0.0,
        orphaned: Callable[[], None] = lambda: None,
    ) -> None:
        self._serial = serial
        self._processes = processes
        self._timeout = timeout
        self._pool = Pool(Nursery(self._serve, orphaned))
        self._replay = Replay()
        size = serial.task.devices.size
        self._size = None if size is None else lru_cache(_SIZES)(size)
        self._seconds = 0.0

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all workers."""
        self._pool.__exit__(kind, error, trace)

    def _serve(self, connection: socket.socket, values: dict[str, Any]) -> None:
        """Be a worker, in a process of its own."""
        number = values["number"]
        visits = Visits(self._serial.task.skipped, partial(self._serial.make_visitor, worker=number))
        Worker(connection, visits, self._pool.board, number).serve()

    @property
    def seconds(self) -> float:
        """The processor time of all visits in workers so far."""
        return self._seconds

    def devices(self) -> Sequence[DeviceId]:
        """Return the task's devices."""
        return self._serial.devices()

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Let workers visit the devices, as many at a time as there are workers."""
        orders, processes = list(orders), self._processes()
        if processes <= 1 and not self._timeout:
            yield from self._serial.ask(orders)
            return
        # No more than are needed at a time; fewer orders than before are no reason to end some.
        self._pool.resize(min(processes, max(len(self._pool.workers), len(orders))))
        for some in exchanges_of(orders):
            yield from self._ask(some)
        self._serial.sync(orders)

    def _ask(self, orders: Sequence[Order]) -> Iterator[Reply | Tally | Failure]:
        """Carry out orders with the same shared part."""
        task, is_done = self._serial.task, False
        dispatch = Dispatch(self._pool, orders, size=self._size, timeout=self._timeout, replay=self._replay)
        try:
            yield from dispatch.run()
            is_done = True
        finally:
            if not is_done:
                self._pool.stop()
            self._seconds += dispatch.seconds
            dispatch.reports.log(self._serial.warn, task.skipped.add)

    def close(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Commit the new personal parts of the counted devices."""
        self._serial.close(label, counted, asked)

    def restore(self, label: str) -> None:
        """Let every device go back to what it has preserved for a label."""
        self._serial.restore(label)
