"""Visits of workers and ranks, whose results are reported to the process that sent the orders."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any

from partita.data.rows import SkippedRows
from partita.device.visit import Visitor
from partita.executors.codec import answer_values
from partita.executors.remote_errors import error_values
from partita.mean import WeightedMean
from partita.protocol import DeviceId, Order, Reply, Tally, Update
from partita.tasks.build import one_thread


class Visits:
    """Carries out visits on one thread and adds up the changes of their replies.

    Args:
        skipped: the bad rows of the task's data. Those that a visit skips are reported, and not added here.
        make_visitor: returns what carries out visits; called once, before the first visit.
        caught: the exceptions that are reported; others are raised.
    """

    def __init__(
        self,
        skipped: SkippedRows,
        make_visitor: Callable[[], Visitor],
        *,
        caught: type[BaseException] = BaseException,
    ) -> None:
        self._skipped = skipped
        self._make_visitor = make_visitor
        self._caught = caught
        self._warnings: dict[str, DeviceId] = {}
        self._mean: WeightedMean | None = None
        self._summed: list[DeviceId] = []

    @cached_property
    def visitor(self) -> Visitor:
        """Carries out single visits."""
        visitor = self._make_visitor()
        visitor.warn = self._warnings.setdefault
        return visitor

    def carry_out(self, order: Order) -> dict[str, Any]:
        """Visit a device and return, as JSON values, everything that `Reports` must know of it.

        A change that is not to be added up is in it as `change`, in tensors.
        """
        self._warnings.clear()
        with self._skipped.collected() as rows:
            try:
                with one_thread():
                    outcome = self._outcome(order)
            except self._caught as error:
                outcome = {"error": error_values(error)}
        return {
            **outcome,
            "warnings": list(self._warnings),
            "skipped": [asdict(row) for row in rows],
        }

    def close(self) -> Tally | None:
        """Return the sum of all changes since the last call, None if there are none, and begin a new one."""
        mean, devices = self._mean, self._summed
        self._mean, self._summed = None, []
        return Tally(devices=devices, totals=mean.totals()) if mean is not None and devices else None

    def _outcome(self, order: Order) -> dict[str, Any]:
        """Return the answer to an order as values, and whether its change is in the sum."""
        if isinstance(order.work, Update) and not order.single and self._mean is None:
            self._mean = WeightedMean(order.shared)
        answer = self.visitor(order, self._mean)
        if isinstance(answer, Reply) and order.single:
            return {"answer": answer_values(answer), "summed": False, "change": answer.change}
        is_summed = isinstance(order.work, Update) and isinstance(answer, Reply)
        if is_summed:
            self._summed.append(order.device)
        return {"answer": answer_values(answer), "summed": is_summed}
