"""Orders given out to workers, the largest device first, until every one is answered and counted once."""

import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from partita.errors import RunFailed
from partita.executors.codec import Values, order_values, totals_of
from partita.executors.exchange import Reports, largest_first
from partita.executors.messages import receive
from partita.executors.output import Replay
from partita.executors.pool import Pool, WorkerState
from partita.executors.processes import receive_descriptor
from partita.executors.shared_memory import SharedTensors
from partita.executors.worker import SHARED, pretrained_name, start_name
from partita.params import cloned
from partita.protocol import Failure, Order, Reply, Tally

_MAX_DEATHS = 10
"""Workers that may end between visits, while the same orders are carried out."""


class Dispatch:
    """One exchange with the workers of a pool: orders out, answers back.

    A worker that ends takes its sums with it: its devices are visited again by others, with the same seeds.
    A device on which two workers have ended is a failure.

    Args:
        pool: the workers.
        orders: the orders, all with the same shared part.
        size: returns the size of a device, if that is known.
        timeout: seconds that a visit may take; 0: no limit.
        replay: shows the output of workers.
    """

    def __init__(
        self,
        pool: Pool,
        orders: Sequence[Order],
        *,
        size: Callable[[str], int] | None,
        timeout: float,
        replay: Replay,
    ) -> None:
        self._pool = pool
        self._orders = orders
        self._timeout = timeout
        self._replay = replay
        self._queue = deque(largest_first(orders, size))
        self._replies: dict[int, Reply] = {}
        self._causes: dict[int, list[str]] = {}
        self._deaths = 0
        self.reports = Reports(orders)
        """The reports of the visits so far."""
        self.seconds = 0.0
        """The processor time of the visits so far."""

    def run(self) -> Iterator[Reply | Tally | Failure]:
        """Yield an answer to each order, and the sums of all changes.

        Raises:
            BaseException: what a visit has raised; where several have, the first in the order of the orders.
        """
        self._put_tensors()
        with selectors.DefaultSelector() as selector:
            for worker in self._pool.workers:
                selector.register(worker.child.connection, selectors.EVENT_READ, worker)
            for key, _ in selector.select(0):  # Workers that have ended since the last exchange.
                yield from self._read(key.data, selector)
            while self._is_open():
                self._assign()
                ready = selector.select(self._patience())
                now = time.monotonic()
                for key, _ in ready:
                    yield from self._read(key.data, selector)
                yield from self._end_late(selector, now)
        self.reports.raise_first()

    def _put_tensors(self) -> None:
        """Write the tensors of the orders to memory that the workers share."""
        self._pool.put(SHARED, self._orders[0].shared)
        for start in {id(order.start): order.start for order in self._orders}.values():
            named = {
                start_name(start.digest): start.personal,
                pretrained_name(start.frozen): start.pretrained,
            }
            for name, tensors in named.items():
                if tensors is not None and not self._pool.has(name):
                    self._pool.put(name, tensors)

    def _is_open(self) -> bool:
        """Return whether anything is missing; after an error, only the orders before it are."""
        if (end := self.reports.end) < len(self._orders):
            self._queue = deque(number for number in self._queue if number < end)
            visits = [number for worker in self._pool.workers for number in worker.visits if number < end]
            return bool(self._queue or visits)
        return bool(self._queue or any(worker.visits or worker.summed for worker in self._pool.workers))

    def _assign(self) -> None:
        """Give each worker an order, and one more to begin with at once, unless they are about to run out."""
        room = 2 if len(self._queue) > len(self._pool.workers) else 1
        for depth in range(room):
            for worker in self._pool.workers:
                if self._queue and len(worker.visits) <= depth and not worker.is_counting:
                    self._send(worker, self._queue.popleft())
        if self._queue:
            return
        for worker in self._pool.workers:
            if worker.summed and not worker.visits and not worker.is_counting:
                worker.is_counting = True
                worker.send({"count": True})

    def _send(self, worker: WorkerState, number: int) -> None:
        order = self._orders[number]
        for name in (SHARED, start_name(order.start.digest), pretrained_name(order.start.frozen)):
            self._pool.give(worker, name)
        if not worker.visits:
            worker.begun = time.monotonic()
        worker.visits.append(number)
        worker.send({"order": order_values(order)})

    def _patience(self) -> float | None:
        """Return the seconds until a visit is late, None if none can be."""
        begun = [worker.begun for worker in self._pool.workers if worker.visits]
        return max(0.0, min(begun) + self._timeout - time.monotonic()) if self._timeout and begun else None

    def _read(
        self, worker: WorkerState, selector: selectors.BaseSelector
    ) -> Iterator[Reply | Tally | Failure]:
        """Read one message of a worker."""
        connection = worker.child.connection
        try:
            message = receive(connection)
            if message is not None and (layout := message.values.get("layout")):
                worker.totals = SharedTensors(receive_descriptor(connection), layout)
        except OSError:
            message = None
        if message is None:
            yield from self._replace(worker, selector)
        elif "totals" in message.values:
            yield from self._counted(worker, message.values)
        elif "seconds" in message.values:
            yield from self._answered(worker, {**message.values, **message.tensors})
        else:
            self._replay(message.values)

    def _answered(self, worker: WorkerState, values: dict[str, Any]) -> Iterator[Reply | Failure]:
        """Keep the answer to a worker's first order until its sums arrive; yield one that is not in them."""
        number = worker.visits.popleft()
        worker.begun = time.monotonic()
        self.seconds += values["seconds"]
        answer = self.reports.add(number, values)
        if isinstance(answer, Reply) and values["summed"]:
            worker.summed.append(number)
            self._replies[number] = answer
        elif answer is not None:
            yield answer

    def _counted(self, worker: WorkerState, values: Values) -> Iterator[Reply | Tally]:
        """Yield a worker's sums and the replies that are in them."""
        assert worker.totals is not None
        groups: dict[str, dict[str, Any]] = {"limbs": {}, "whole": {}}
        for path, tensor in cloned(worker.totals.tensors).items():
            group, _, name = path.partition("/")
            groups[group][name] = tensor
        numbers, worker.summed, worker.is_counting = worker.summed, [], False
        yield Tally(
            devices=[self._orders[number].device for number in numbers],
            totals=totals_of(values["totals"], groups),
        )
        for number in numbers:
            yield self._replies.pop(number)

    def _end_late(self, selector: selectors.BaseSelector, now: float) -> Iterator[Failure]:
        """Replace the workers whose visit had taken too long at a time `now`, up to which all were heard."""
        for worker in list(self._pool.workers) if self._timeout else ():
            if worker.visits and now >= worker.begun + self._timeout:
                worker.child.kill()
                cause = f"The visit took longer than `timeout` = {self._timeout:g} s"
                yield from self._replace(worker, selector, cause)

    def _replace(
        self, worker: WorkerState, selector: selectors.BaseSelector, cause: str = ""
    ) -> Iterator[Failure]:
        """Replace a worker, queue again what is lost with it, and yield a failure of the device it was at."""
        selector.unregister(worker.child.connection)
        ended = self._pool.replace(worker)
        new = self._pool.workers[worker.number]
        selector.register(new.child.connection, selectors.EVENT_READ, new)
        visits = list(worker.visits)
        self._queue.extendleft([*visits, *worker.summed])
        if not visits:
            self._deaths += 1
            if self._deaths == _MAX_DEATHS:
                raise RunFailed(f"Worker processes end between visits: the last of {_MAX_DEATHS} {ended}.")
            return
        causes = self._causes.setdefault(visits[0], [])
        causes.append(cause or f"The worker process {ended}")
        if len(causes) == 2:
            self._queue.remove(visits[0])
            yield Failure(device=self._orders[visits[0]].device, reason=_twice(*causes))


def _twice(first: str, second: str) -> str:
    """Return how both visits of a device ended.

    >>> _twice("The worker process was killed by signal 9", "The worker process was killed by signal 9")
    'The worker process was killed by signal 9 during this visit, twice.'
    """
    if first == second:
        return f"{first} during this visit, twice." if "process" in first else f"{first}, twice."
    return f"{first} during this visit; when it was repeated: {second[0].lower()}{second[1:]}."
