"""A worker process: it visits the devices that it is given, and adds up their changes."""

import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from partita.data.cache import ExampleCache
from partita.device.visit import Visitor
from partita.executors.codec import Values, answer_values, order_of, totals_values
from partita.executors.messages import receive
from partita.executors.output import Link, forward_output
from partita.executors.processes import receive_descriptor
from partita.executors.remote_errors import error_values
from partita.executors.shared_memory import SharedTensors
from partita.params import Params, WeightedMean
from partita.protocol import DeviceId, Failure, Order, Reply, Start
from partita.tasks.build import one_thread
from partita.tasks.task import Task

SHARED = "shared"
"""The name of the shared part among the tensors that workers are given."""


class Worker:
    """The visits of one worker process, with models and examples of its own.

    Args:
        connection: the connection with the parent.
        task: the task; the examples that it caches are copies that belong to this process.
        make_visitor: returns what carries out visits; called once, before the first visit.
    """

    def __init__(self, connection: socket.socket, task: Task, make_visitor: Callable[[], Visitor]) -> None:
        self._link = Link(connection)
        self._skipped = task.skipped
        self._make_visitor = make_visitor
        self._given: dict[str, SharedTensors] = {}
        self._mean: WeightedMean | None = None
        self._totals: SharedTensors | None = None
        self._warnings: dict[str, DeviceId] = {}
        self._skipped.leave_log()

    @cached_property
    def _visitor(self) -> Visitor:
        visitor = self._make_visitor()
        visitor.warn = self._warnings.setdefault
        return visitor

    def serve(self) -> None:
        """Do what the parent asks for until it closes the connection."""
        forward_output(self._link)
        while (message := receive(self._link.connection)) is not None:
            match message.values:
                case {"order": values}:
                    self._visit(values)
                case {"tensors": name, "layout": layout}:
                    self._given[name] = SharedTensors(receive_descriptor(self._link.connection), layout)
                case {"processes": processes}:
                    ExampleCache.processes = processes
                case _:
                    self._send_totals()

    def _visit(self, values: Values) -> None:
        """Visit a device, and send its answer together with everything else that the parent must know."""
        skipped = self._skipped
        known, begin = len(skipped), time.process_time()
        self._warnings.clear()
        try:
            outcome = self._answer(values)
        except BaseException as error:  # Also those that end a process: they are to end the run.
            outcome = {"error": error_values(error)}
        found = [vars(row) for row in skipped[known:]] if len(skipped) > known else []
        self._link.send(
            {
                **outcome,
                "seconds": time.process_time() - begin,
                "warnings": list(self._warnings.items()),
                "skipped": found,
            }
        )

    def _answer(self, values: Values) -> dict[str, Any]:
        """Return the answer to an order as values, and whether the sums have its change."""
        start = Start(
            digest="",
            frozen="",
            personal=self._tensors(start_name(values["start"]["digest"])),
            pretrained=self._tensors(pretrained_name(values["start"]["frozen"])),
        )
        order = order_of(values, self._given[SHARED].tensors, start)
        with one_thread():
            answer = self._visitor(order)
            if isinstance(answer, Reply) and answer.change is not None:
                answer = self._summed(order, answer, answer.change)
                return {"answer": answer_values(answer), "summed": isinstance(answer, Reply)}
        return {"answer": answer_values(answer), "summed": False}

    def _tensors(self, name: str) -> Params | None:
        return self._given[name].tensors if name in self._given else None

    def _summed(self, order: Order, reply: Reply, change: Params) -> Reply | Failure:
        """Add the change of a reply to the sums in place; one that cannot be added is a failure."""
        if self._mean is None:
            self._mean = WeightedMean(order.shared)
        try:
            self._mean.add(order.device, change, reply.weight)
        except ValueError as error:
            return Failure(device=order.device, reason=str(error))
        return reply

    def _send_totals(self) -> None:
        """Write the sums to shared memory, tell the parent, and begin new ones."""
        assert self._mean is not None
        values, groups = totals_values(self._mean.totals())
        tensors = {f"{group}/{name}": each for group, some in groups.items() for name, each in some.items()}
        self._mean = None
        is_new = self._totals is None or not self._totals.fits(tensors)
        if self._totals is None or is_new:
            self._totals = SharedTensors.like(tensors)
        self._totals.write(tensors)
        layout = self._totals.layout if is_new else None
        self._link.send({"totals": values, "layout": layout}, self._totals.descriptor if is_new else None)


def start_name(digest: str) -> str:
    """Return the name of a personal part that devices start with."""
    return f"start {digest}"


def pretrained_name(frozen: str) -> str:
    """Return the name of the tensors that are frozen after pretraining."""
    return f"pretrained {frozen}"
