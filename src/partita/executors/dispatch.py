"""Orders put up for workers, the largest device first, until every one is answered and counted once."""

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from partita.errors import RunFailed
from partita.executors.codec import Values, orders_values, totals_of
from partita.executors.exchange import Reports, largest_first
from partita.executors.messages import Message, encoded, receive
from partita.executors.output import Replay
from partita.executors.pool import Pool, WorkerState
from partita.executors.processes import receive_descriptor
from partita.executors.shared_memory import SharedTensors
from partita.executors.worker import SHARED, pretrained_name, start_name
from partita.protocol import Failure, Order, Reply, Tally

_MAX_DEATHS = 10
"""Workers that may end between visits, while the same orders are carried out."""
_BETWEEN = 60.0
"""Seconds that a worker may take between visits beyond the time limit of one: it reads orders and sends its
sums then. One that takes longer was stopped."""


class Dispatch:
    """One exchange with the workers of a pool: orders out, answers back.

    Workers take the orders from the board of the pool. A worker that ends takes its sums with it, and reports
    that it has not sent: its devices are visited again, with the same seeds, when the other workers have
    taken all other orders. A device on which two workers have ended is a failure.

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
        self._numbers = largest_first(orders, size)
        self._message = encoded(orders_values(orders))
        self._replies: dict[int, Reply] = {}
        self._heard: set[int] = set()
        self._answered: set[int] = set()
        self._causes: dict[int, list[str]] = {}
        self._deaths = 0
        self.reports = Reports(orders)
        """The reports of the visits so far."""
        self.seconds = 0.0
        """The processor time of the visits so far."""

    def run(self) -> Iterator[Reply | Tally | Failure]:
        """Yield an answer to each order, and the sums of all changes.

        The tensors of a tally are in the memory that its worker writes to, so they hold only until the next
        answer is asked for.

        Raises:
            BaseException: what a visit has raised; where several have, the first in the order of the orders.
        """
        self._put_tensors()
        with selectors.PollSelector() as selector:
            for worker in self._pool.workers:
                selector.register(worker.child.connection, selectors.EVENT_READ, worker)
            while missing := self._missing():
                self._pool.board.put(missing, end=self.reports.end, workers=len(self._pool.workers))
                for worker in self._pool.workers[: len(missing)]:
                    self._begin(worker)
                while self._is_open():
                    for key, _ in selector.select(self._patience()):
                        yield from self._read(key.data, selector)
                    yield from self._end_late(selector)
        self.reports.raise_first()

    def _put_tensors(self) -> None:
        """Write the tensors of the orders to memory that the workers share."""
        self._pool.put(SHARED, self._orders[0].shared)
        self._names = [SHARED]
        for start in {id(order.start): order.start for order in self._orders}.values():
            named = {
                start_name(start.digest): start.personal,
                pretrained_name(start.frozen): start.pretrained,
            }
            for name, tensors in named.items():
                self._names.append(name)
                if tensors is not None and not self._pool.has(name):
                    self._pool.put(name, tensors)

    def _begin(self, worker: WorkerState) -> None:
        """Let a worker take orders, with all tensors that they need."""
        self._pool.board.leave(worker.number)  # Its time begins now.
        # One that was stopped neither reads nor ends what it has started to send.
        worker.child.connection.settimeout(self._timeout + _BETWEEN if self._timeout else None)
        for name in self._names:
            self._pool.give(worker, name)
        worker.begin(self._message)

    def _missing(self) -> list[int]:
        """Return the orders that have no answer; after an error, those before it that have no report."""
        end = self.reports.end
        done = self._answered if end == len(self._orders) else self._heard
        return [number for number in self._numbers if number < end and number not in done]

    def _is_open(self) -> bool:
        """Return whether workers have something to say that is missing."""
        is_busy = any(worker.is_busy for worker in self._pool.workers)
        return is_busy and (self.reports.end == len(self._orders) or bool(self._missing()))

    def _patience(self) -> float | None:
        """Return the seconds until a worker can be late, None if none can be."""
        if not self._timeout:
            return None
        times = [self._left(worker)[0] for worker in self._pool.workers if worker.is_busy]
        return max(0.0, min([*times, self._timeout]))  # A visit may begin at any moment.

    def _left(self, worker: WorkerState) -> tuple[float, int | None]:
        """Return the seconds that a worker may still take, and the order that it is at."""
        board = self._pool.board
        order = board.order_of(worker.number)
        limit = self._timeout + (_BETWEEN if order is None else 0.0)
        return board.since(worker.number) + limit - time.monotonic(), order

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
        elif "reports" not in message.values:
            self._replay(message.values)
        else:
            self.seconds += message.values["seconds"]
            yield from self._reported(worker, message)
            if "totals" in message.values:
                worker.is_busy = False
                if (totals := message.values["totals"]) is not None:
                    yield from self._counted(worker, totals)

    def _reported(self, worker: WorkerState, message: Message) -> Iterator[Reply | Failure]:
        """Keep the answers of a worker until its sums arrive; yield those that are not in them."""
        for number, report in message.values["reports"]:
            self._heard.add(number)
            answer = self.reports.add(number, {**report, "change": message.tensors.get(str(number))})
            if isinstance(answer, Reply) and report["summed"]:
                worker.summed.append(number)
                self._replies[number] = answer
            elif answer is not None:
                self._answered.add(number)
                yield answer
            else:
                self._pool.board.end = self.reports.end

    def _counted(self, worker: WorkerState, values: Values) -> Iterator[Reply | Tally]:
        """Yield a worker's sums and the replies that are in them."""
        assert worker.totals is not None
        groups: dict[str, dict[str, Any]] = {"limbs": {}, "whole": {}}
        for path, tensor in worker.totals.tensors.items():
            group, _, name = path.partition("/")
            groups[group][name] = tensor
        numbers, worker.summed = worker.summed, []
        self._answered.update(numbers)
        yield Tally(
            devices=[self._orders[number].device for number in numbers],
            totals=totals_of(values, groups),
        )
        for number in numbers:
            yield self._replies.pop(number)

    def _end_late(self, selector: selectors.BaseSelector) -> Iterator[Failure]:
        """Replace the workers that take too long, for a visit or between two."""
        for worker in list(self._pool.workers) if self._timeout else ():
            left, order = self._left(worker)
            if not worker.is_busy or left > 0 or (order is None and _has_spoken(worker, selector)):
                continue
            worker.child.kill()
            yield from self._replace(worker, selector, late=order, is_late=True)

    def _replace(
        self,
        worker: WorkerState,
        selector: selectors.BaseSelector,
        *,
        late: int | None = None,
        is_late: bool = False,
    ) -> Iterator[Failure]:
        """Replace a worker, and yield a failure of the device it was at where that is the second time.

        Args:
            worker: the worker, which has ended or was killed.
            selector: waits for all workers.
            late: the order that took it too long.
            is_late: whether it was killed for that, or because it took too long between two orders.
        """
        selector.unregister(worker.child.connection)
        ended = self._pool.replace(worker)
        new = self._pool.workers[worker.number]
        selector.register(new.child.connection, selectors.EVENT_READ, new)
        self._begin(new)
        if late is not None:
            if late == ended.order:
                yield from self._strike(late, f"The visit took longer than `timeout` = {self._timeout:g} s")
        elif is_late:
            self._count_death(f"did nothing for {self._timeout + _BETWEEN:g} s")
        elif ended.order is None:
            self._count_death(ended.reason)
        else:
            yield from self._strike(ended.order, f"The worker process {ended.reason}")

    def _count_death(self, reason: str) -> None:
        """Count a worker that has ended between visits, in place, and raise if there are too many."""
        self._deaths += 1
        if self._deaths == _MAX_DEATHS:
            raise RunFailed(f"Worker processes end between visits: the last of {_MAX_DEATHS} {reason}.")

    def _strike(self, number: int, cause: str) -> Iterator[Failure]:
        """Note why a visit has ended with its worker, in place, and yield a failure the second time."""
        causes = self._causes.setdefault(number, [])
        causes.append(cause)
        if len(causes) == 2:
            self._heard.add(number)
            self._answered.add(number)
            yield Failure(device=self._orders[number].device, reason=_twice(*causes))


def _has_spoken(worker: WorkerState, selector: selectors.BaseSelector) -> bool:
    """Return whether a worker has sent something that is not read yet."""
    return any(key.data is worker for key, _ in selector.select(0))


def _twice(first: str, second: str) -> str:
    """Return how both visits of a device ended.

    >>> _twice("The worker process was killed by signal 9", "The worker process was killed by signal 9")
    'The worker process was killed by signal 9 during this visit, twice.'
    """
    if first == second:
        return f"{first} during this visit, twice." if "process" in first else f"{first}, twice."
    return f"{first} during this visit; when it was repeated: {second[0].lower()}{second[1:]}."
