"""All devices in this process, one after the other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import ClassVar, Self

from partita.device.batches import Warnings
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import Store
from partita.device.visit import Visitor
from partita.executors.exchange import exchanges_of
from partita.executors.settings import SERIAL
from partita.mean import WeightedMean
from partita.protocol import DeviceId, Evaluate, Failure, Order, Reply, Stage, Tally, Update
from partita.tasks.build import one_thread, preserved_random_state
from partita.tasks.task import Task


class SerialExecutor:
    """Visits devices one after the other in this process, on one thread.

    Args:
        task: data, model, loss and metrics.
        roles: how devices learn in each stage.
        store: storage of personal parts.
        seed: the run's seed.
        computing: where and how visits compute.
    """

    first_worker: ClassVar[int] = 0
    """The number of the first worker of this process: runs that share a machine share its accelerators."""

    def __init__(
        self,
        task: Task,
        roles: Mapping[Stage, Role],
        store: Store,
        *,
        seed: int,
        computing: Computing = SERIAL,
    ) -> None:
        self.task = task
        self.warn = Warnings()
        self._make_visitor = partial(Visitor, task, roles, store, seed=seed, computing=computing)
        self._store = store
        self._devices = task.devices.ids

    def make_visitor(self, *, worker: int = 0) -> Visitor:
        """Return what carries out visits, on the accelerator of a worker with this number."""
        return self._make_visitor(worker=self.first_worker + worker)

    @cached_property
    def _visitor(self) -> Visitor:
        """The visits in this process, of which there are none where all are in worker processes."""
        visitor = self.make_visitor()
        visitor.warn = self.warn
        return visitor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: there is nothing to stop."""

    def devices(self) -> Sequence[DeviceId]:
        """Return the task's devices."""
        return self._devices

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Visit one device after the other."""
        done: list[Order] = []
        for some in exchanges_of(orders):
            yield from self._ask(some)
            done += some
        self.sync(done)

    def _ask(self, orders: Sequence[Order]) -> Iterator[Reply | Tally | Failure]:
        """Carry out orders with the same shared part, and add up the changes of it."""
        mean, summed = WeightedMean(orders[0].shared), list[DeviceId]()
        with preserved_random_state(self._visitor.accelerator):
            for order in orders:
                with one_thread():
                    answer = self._visitor(order, mean)
                if isinstance(order.work, Update) and isinstance(answer, Reply) and not order.single:
                    summed.append(order.device)
                yield answer
        if summed:
            tally = Tally(devices=summed, totals=mean.totals())
            del mean  # Each sum takes twice the memory of u: the caller has one too when it adds this one.
            yield tally

    def sync(self, orders: Sequence[Order]) -> None:
        """Wait until what devices have saved is on disk, whichever process has visited them."""
        trained: dict[str, list[DeviceId]] = {}
        for order in orders:
            if not isinstance(order.work, Evaluate):
                trained.setdefault(order.label, []).append(order.device)
        for label, devices in trained.items():
            self._store.sync(label, devices)

    def close(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Commit the new personal parts of the counted devices."""
        self._store.commit(label, counted, asked)

    def restore(self, label: str) -> None:
        """Let every device go back to what it has preserved for a label."""
        self._store.restore(label)
