"""A board that the run's process and its workers share: the orders to take, and what each worker is doing.

Workers take orders by themselves, one at a time, so none of them waits for the run's process between two
visits, and short visits take no message each. The order that a worker has taken is known here even if it is
killed, when its connection can say no more.

PyTorch compiles its kernels for every size of a batch, in each process. So where there are many orders, each
worker begins with devices of other sizes, and the processes compile few kernels twice.
"""

import mmap
import os
import time
from collections.abc import Sequence
from itertools import chain

MAX_WORKERS = 4096
"""The most workers that a board has room for."""

_NUMBER = 4
"""Bytes of the number of an order in the pipe. One process at a time can read from a pipe, so each number is
read in one piece, by one worker."""
_MOST = 8192
"""The most numbers that the pipes are given at a time, half of what one has room for."""
_LANES = 8
"""The number of pipes."""
_MANY = 16
"""Orders for each worker from which on workers begin with different ones. With fewer, it matters more that no
worker begins with a large device when the others are done."""
_NONE = -1


class Board:
    """Memory and pipes that are inherited by all processes forked from now on.

    The pipes hold the numbers of the orders that nobody has taken yet: reading one from them is taking it.
    The memory has a place for each worker, in which it writes the number of the order that it is at and since
    when, one for the number from which on no order is started any more, and one for how many pipes are
    used.
    """

    def __init__(self) -> None:
        self._lanes = [os.pipe() for _ in range(_LANES)]
        for descriptor in chain.from_iterable(self._lanes):
            os.set_blocking(descriptor, False)
        memory = memoryview(mmap.mmap(-1, 8 * (2 + 2 * MAX_WORKERS)))
        self._numbers = memory.cast("q")  # A number of 8 bytes is written and read in one piece.
        self._times = memory.cast("d")

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in chain.from_iterable(self._lanes):
            os.close(descriptor)

    def put(self, numbers: Sequence[int], *, end: int, workers: int = 1) -> None:
        """Put up orders to take, the first ones if there are too many; no worker may be taking any.

        Args:
            numbers: the numbers of the orders, in the order in which they are to be taken.
            end: orders from this number on are not started.
            workers: the number of workers that take them.
        """
        while self.take(0) is not None:
            pass
        self.end = end
        numbers = numbers[:_MOST]
        lanes = min(workers, _LANES) if len(numbers) >= _MANY * workers else 1
        self._numbers[1] = lanes
        share = -(-len(numbers) // lanes)
        for lane in range(lanes):
            some = numbers[lane * share : (lane + 1) * share]
            os.write(self._lanes[lane][1], b"".join(n.to_bytes(_NUMBER, "little") for n in some))

    def take(self, worker: int) -> int | None:
        """Take the next order for a worker, in place, and return its number; None where there are no more."""
        lanes = self._numbers[1]
        for place in range(worker, worker + lanes):
            try:
                return int.from_bytes(os.read(self._lanes[place % lanes][0], _NUMBER), "little")
            except BlockingIOError:  # This pipe is empty.
                continue
        return None

    @property
    def end(self) -> int:
        """Orders from this number on are not started."""
        return self._numbers[0]

    @end.setter
    def end(self, end: int) -> None:
        self._numbers[0] = end

    def begin(self, worker: int, order: int) -> None:
        """Note, in place, that a worker begins with an order."""
        self._times[3 + 2 * worker] = time.monotonic()  # The clock is the same for all processes.
        self._numbers[2 + 2 * worker] = order

    def leave(self, worker: int) -> None:
        """Note, in place, that a worker is at no order."""
        self._times[3 + 2 * worker] = time.monotonic()
        self._numbers[2 + 2 * worker] = _NONE

    def order_of(self, worker: int) -> int | None:
        """Return the order that a worker is at."""
        order = self._numbers[2 + 2 * worker]
        return None if order == _NONE else order

    def since(self, worker: int) -> float:
        """Return the time, by `time.monotonic`, since when a worker is at its order, or at none."""
        return self._times[3 + 2 * worker]
