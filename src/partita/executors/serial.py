"""All devices in this process, one after the other."""

from collections.abc import Iterable, Iterator, Sequence

import torch

from partita.device.visit import Visitor
from partita.protocol import DeviceId, Failure, Order, Reply


class SerialExecutor:
    """Carries out orders one by one, on one thread: other numbers of threads give other bits."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor

    def devices(self) -> Sequence[DeviceId]:
        """Return the task's devices."""
        return self.visitor.task.devices.ids

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Failure]:
        """Visit one device after the other."""
        for order in orders:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                answer = self.visitor(order)
            finally:
                torch.set_num_threads(threads)
            yield answer

    def close(self, label: str, counted: Sequence[DeviceId]) -> None:
        """Commit what the counted devices filed."""
        self.visitor.store.commit(label, counted)
