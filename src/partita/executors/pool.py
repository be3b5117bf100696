"""A pool of worker processes that can be replaced, and the tensors that they are given."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from partita.executors.board import MAX_WORKERS, Board
from partita.executors.messages import send
from partita.executors.processes import Child, Nursery, send_descriptor
from partita.executors.shared_memory import SharedTensors
from partita.params import Params


@dataclass(eq=False)
class WorkerState:
    """The parent's knowledge of a worker."""

    number: int
    """Its place among the workers, which a replacement takes over."""
    child: Child
    given: set[str] = field(default_factory=set)
    """The names of the tensors that it has."""
    is_busy: bool = False
    """Whether it was asked to take orders, and has not said yet that there are no more."""
    summed: list[int] = field(default_factory=list)
    """The numbers of the orders that are in its sums and nowhere else."""
    totals: SharedTensors | None = None
    """Where it writes its sums."""

    def send(self, values: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Send it a message; where it has ended, that shows when its answer is read."""
        with suppress(OSError):
            send(self.child.connection, values)
            if descriptor is not None:
                send_descriptor(self.child.connection, descriptor)

    def begin(self, orders: bytes) -> None:
        """Ask it, by a message of `encoded`, to take orders."""
        self.is_busy = True
        with suppress(OSError):
            self.child.connection.sendall(orders)


@dataclass(frozen=True)
class Ended:
    """The end of a worker."""

    reason: str
    """How it ended."""
    order: int | None
    """The number of the order that it was at."""


class Pool:
    """Worker processes, as many as asked for; a context manager, entered before threads are started.

    Args:
        nursery: starts the processes; each gets its number among them.
    """

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._tensors: dict[str, SharedTensors] = {}
        self.workers: list[WorkerState] = []

    def __enter__(self) -> Self:
        self.board = Board()
        self._nursery.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all workers."""
        self.workers.clear()
        self._nursery.__exit__(kind, error, trace)
        self.board.close()

    def resize(self, number: int) -> None:
        """Start or end workers, in place, until there are as many as asked for."""
        before, number = len(self.workers), min(number, MAX_WORKERS)
        while len(self.workers) > number:
            self._end(self.workers.pop())
        while len(self.workers) < number:
            self.workers.append(self._started(len(self.workers)))
        if before != number:
            for worker in self.workers:
                worker.send({"processes": number})

    def replace(self, worker: WorkerState) -> Ended:
        """Start a worker in place of one that has ended or is to end, and return how and where that was."""
        self.workers.remove(worker)  # So that it is not ended again if none can be started in its place.
        ended = Ended(worker.child.exit_reason(), self.board.order_of(worker.number))
        self.workers.insert(worker.number, self._started(worker.number))
        self.workers[worker.number].send({"processes": len(self.workers)})
        return ended

    def stop(self) -> None:
        """End all workers, whatever they are doing."""
        while self.workers:
            self._end(self.workers.pop())

    def put(self, name: str, params: Params) -> None:
        """Write tensors to shared memory, for workers to be given them; no worker may be reading them."""
        if name not in self._tensors or not self._tensors[name].fits(params):
            self._tensors[name] = SharedTensors.like(params)
            for worker in self.workers:
                worker.given.discard(name)
        self._tensors[name].write(params)

    def has(self, name: str) -> bool:
        """Return whether there are tensors of this name."""
        return name in self._tensors

    def give(self, worker: WorkerState, name: str) -> None:
        """Give a worker the tensors of a name, unless there are none or it has them."""
        if name in self._tensors and name not in worker.given:
            tensors = self._tensors[name]
            worker.send({"tensors": name, "layout": tensors.layout}, tensors.descriptor)
            worker.given.add(name)

    def _started(self, number: int) -> WorkerState:
        self.board.leave(number)
        return WorkerState(number, self._nursery.spawn({"number": number}))

    def _end(self, worker: WorkerState) -> None:
        with suppress(ProcessLookupError):
            worker.child.kill()
        worker.child.exit_reason()
