"""All devices in this process, one after the other."""

from collections.abc import Iterable, Iterator, Sequence

from partita.device.visit import Visitor
from partita.protocol import DeviceId, Failure, Order, Reply
from partita.tasks.build import one_thread, random_numbers_kept


class SerialExecutor:
    """Carries out orders one by one, on one thread."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor

    def devices(self) -> Sequence[DeviceId]:
        """Return the task's devices."""
        return self.visitor.task.devices.ids

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Failure]:
        """Visit one device after the other."""
        with random_numbers_kept():
            for order in orders:
                with one_thread():
                    answer = self.visitor(order)
                yield answer

    def close(self, label: str, counted: Sequence[DeviceId]) -> None:
        """Commit what the counted devices filed."""
        self.visitor.store.commit(label, counted)
