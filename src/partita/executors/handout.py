"""The orders of one exchange as ranks take them, by their numbers, and what has come back so far.

The main thread of rank 0 takes orders for itself, and the threads that hear from other ranks take orders for
those; all of them share a `Handout`.
"""

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence

from partita.executors.codec import Values
from partita.protocol import Tally

_AHEAD = 2
"""Orders that a rank has at a time while there are many, so that it does not wait for the next one."""

Result = tuple[int, Values] | Tally
"""The number of an order and the report on it, or the sums of a rank."""


class Handout:
    """Orders, to be taken by several threads.

    Args:
        numbers: the numbers of the orders, in the order in which they are handed out.
        ranks: the number of ranks.
    """

    def __init__(self, numbers: Sequence[int], ranks: int) -> None:
        self._left = deque(numbers)
        self._ranks = ranks
        self._taken: dict[int, deque[int]] = {}
        self._lock = threading.Lock()
        self._done = 0
        self._results: queue.SimpleQueue[Result | BaseException | None] = queue.SimpleQueue()

    def take(self) -> int | None:
        """Return the next order, for rank 0; None when there are no more."""
        with self._lock:
            return self._left.popleft() if self._left else None

    def take_for(self, rank: int) -> int | None:
        """Return the next order for another rank; None when it has enough, or there are no more."""
        with self._lock:
            own = self._taken.setdefault(rank, deque())
            if not self._left or len(own) >= (_AHEAD if len(self._left) > self._ranks else 1):
                return None
            own.append(self._left.popleft())
            return own[-1]

    @property
    def is_empty(self) -> bool:
        """Whether all orders have been taken."""
        return not self._left

    def keep_below(self, number: int) -> None:
        """Take back the orders from a number on, in place, as far as no rank has taken them."""
        with self._lock:
            self._left = deque(each for each in self._left if each < number)

    def reported(self, rank: int) -> int:
        """Return the order that a rank has carried out, the first of those that it has, in place."""
        with self._lock:
            return self._taken[rank].popleft()

    def put(self, result: Result | BaseException | None) -> None:
        """Hand a result of another rank to the main thread, or an exception that is raised there.

        None says that a rank is done.
        """
        self._results.put(result)

    def arrived(self) -> Iterator[Result]:
        """Yield what has arrived, or raise an exception that has."""
        while not self._results.empty():
            yield from self._next()

    def rest(self, ranks: int) -> Iterator[Result]:
        """Yield everything else, as it arrives, until as many ranks are done."""
        while self._done < ranks:
            yield from self._next()

    def _next(self) -> Iterator[Result]:
        """Wait for the next result and yield it, unless it says that a rank is done."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        if result is None:
            self._done += 1
        else:
            yield result
