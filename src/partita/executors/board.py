"""A board that the run's process and its workers share: the orders to take, and what each worker is doing.

Workers take orders by themselves, one at a time, so none of them waits for the run's process between two
visits, and short visits take no message each. The order that a worker has taken is known here even if it is
killed, when its connection can say no more.
"""

import mmap
import os
import time
from collections.abc import Sequence

MAX_WORKERS = 4096
"""The most workers that a board has room for."""

_NUMBER = 4
"""Bytes of the number of an order in the pipe. One process at a time can read from a pipe, so each number is
read in one piece, by one worker."""
_MOST = 8192
"""The most numbers that the pipe is given at a time, half of what it has room for."""
_NONE = -1


class Board:
    """Memory and a pipe that are inherited by all processes forked from now on.

    A pipe holds the numbers of the orders that nobody has taken yet: reading one from it is taking it. The
    memory has a place for each worker, in which it writes the number of the order that it is at and when it
    began, and one for the number from which on no order is started any more.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        memory = memoryview(mmap.mmap(-1, 8 * (1 + 2 * MAX_WORKERS)))
        self._numbers = memory.cast("q")  # A number of 8 bytes is written and read in one piece.
        self._times = memory.cast("d")

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self._writer)

    def put(self, numbers: Sequence[int], *, end: int) -> None:
        """Put up orders to take, the first ones if there are too many; no worker may be taking any.

        Args:
            numbers: the numbers of the orders, in the order in which they are to be taken.
            end: orders from this number on are not started.
        """
        while self.take() is not None:
            pass
        self.end = end
        os.write(self._writer, b"".join(n.to_bytes(_NUMBER, "little") for n in numbers[:_MOST]))

    def take(self) -> int | None:
        """Take the next order, in place, and return its number; None where there are no more."""
        try:
            return int.from_bytes(os.read(self._reader, _NUMBER), "little")
        except BlockingIOError:
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
        self._times[2 + 2 * worker] = time.monotonic()  # The clock is the same for all processes.
        self._numbers[1 + 2 * worker] = order

    def leave(self, worker: int) -> None:
        """Note, in place, that a worker is at no order."""
        self._numbers[1 + 2 * worker] = _NONE

    def order_of(self, worker: int) -> int | None:
        """Return the order that a worker is at."""
        order = self._numbers[1 + 2 * worker]
        return None if order == _NONE else order

    def begun(self, worker: int) -> float:
        """Return the time, by `time.monotonic`, at which a worker began with the order that it is at."""
        return self._times[2 + 2 * worker]
