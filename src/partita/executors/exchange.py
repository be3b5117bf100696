"""One exchange with other processes: orders with the same shared part, and the reports of their visits."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from partita.data.rows import SkippedRow
from partita.device.batches import Warn
from partita.executors.codec import Values, answer_of
from partita.executors.remote_errors import error_of
from partita.protocol import DeviceId, Failure, Order, Reply


def exchanges_of(orders: Iterable[Order]) -> Iterator[list[Order]]:
    """Yield orders in groups that have the same shared part, which is sent once for all."""
    for _, group in groupby(orders, key=lambda order: id(order.shared)):
        yield list(group)


def largest_first(orders: Sequence[Order], size: Callable[[DeviceId], int] | None) -> list[int]:
    """Return the numbers of orders in the order in which to begin with them.

    Args:
        orders: the orders, numbered from 0.
        size: returns the size of a device, if that is known.
    """
    numbers = range(len(orders))
    return list(numbers) if size is None else sorted(numbers, key=lambda number: -size(orders[number].device))


class Reports:
    """The reports of visits, as `Visits` makes them, in any order of arrival.

    Warnings, skipped rows and exceptions appear as in one process, which visits devices in the order of the
    orders and ends with the first exception.

    Args:
        orders: the orders, numbered from 0.
    """

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = orders
        self._reports: dict[int, list[Values]] = {}
        self._errors: dict[int, BaseException] = {}

    def add(self, number: int, report: Values) -> Reply | Failure | None:
        """Add the report on an order, in place, and return its answer; None if the visit raised an exception.

        An order may have several reports: its device is visited again if its change is lost with a worker.
        """
        self._reports.setdefault(number, []).append({**report, "change": None})
        if "error" in report:
            self._errors[number] = error_of(report["error"])
            return None
        return answer_of(report["answer"], report.get("change"))

    @property
    def end(self) -> int:
        """The number of the first order that raised an exception; if none did, the number of all orders."""
        return min(self._errors, default=len(self._orders))

    def raise_first(self) -> None:
        """Raise the exception of the first order that has one, once all orders before it have reports."""
        if self._errors:
            raise self._errors[self.end]

    def log(self, warn: Warn, skip: Callable[[SkippedRow], None]) -> None:
        """Log what was noticed in visits, in the order of the orders, as far as the first exception."""
        for number in sorted(self._reports):
            for report in self._reports[number] if number <= self.end else ():
                for warning in report["warnings"]:
                    warn(warning, self._orders[number].device)
                for row in report["skipped"]:
                    skip(SkippedRow(**row))
