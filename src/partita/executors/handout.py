"""The orders of one round as ranks take them, largest device first, and what has come back so far.

The main thread of rank 0 takes orders for itself, and the threads that hear from other ranks take orders for
those; all of them share a `Handout`.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from partita.protocol import DeviceId, Failure, Order, Reply, Tally

_AHEAD = 2
"""Orders that a rank has at a time while there are many, so that it does not wait for the next one."""


class Handout:
    """Orders, to be taken by several threads.

    Args:
        orders: the orders, in the order in which they are handed out.
        ranks: the number of ranks.
    """

    def __init__(self, orders: Sequence[Order], ranks: int) -> None:
        self._left = deque(orders)
        self._ranks = ranks
        self._taken: dict[int, dict[DeviceId, Order]] = {}
        self._lock = threading.Lock()
        self._done = 0
        self._results: queue.SimpleQueue[Reply | Failure | Tally | BaseException | None] = queue.SimpleQueue()

    def take(self) -> Order | None:
        """Return the next order, for rank 0; None when there are no more."""
        with self._lock:
            return self._left.popleft() if self._left else None

    def take_for(self, rank: int) -> Order | None:
        """Return the next order for another rank; None when it has enough, or there are no more."""
        with self._lock:
            own = self._taken.setdefault(rank, {})
            if not self._left or len(own) >= (_AHEAD if len(self._left) > self._ranks else 1):
                return None
            order = self._left.popleft()
            own[order.device] = order
            return order

    @property
    def is_empty(self) -> bool:
        """Whether all orders have been taken."""
        return not self._left

    def answered(self, rank: int, device: DeviceId) -> Order:
        """Return the order that a rank has carried out, which it no longer has."""
        with self._lock:
            return self._taken[rank].pop(device)

    def put(self, result: Reply | Failure | Tally | BaseException | None) -> None:
        """Hand a result of another rank to the main thread: an answer, sums, or an error.

        None says that a rank is done.
        """
        self._results.put(result)

    def arrived(self) -> Iterator[Reply | Failure | Tally]:
        """Yield what has arrived, or raise an error that has."""
        while not self._results.empty():
            yield from self._next()

    def rest(self, ranks: int) -> Iterator[Reply | Failure | Tally]:
        """Yield everything else, as it arrives, until as many ranks are done."""
        while self._done < ranks:
            yield from self._next()

    def _next(self) -> Iterator[Reply | Failure | Tally]:
        """Wait for the next result and yield it, unless it says that a rank is done."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        if result is None:
            self._done += 1
        else:
            yield result
