"""A worker process: it takes orders, visits their devices, and adds up the changes.

It takes one order after the other from the board that all workers share. Reports on short visits are sent
several at a time, since a message takes as long as a short visit.
"""

import socket
import time
from typing import Any

from partita.data.cache import ExampleCache
from partita.executors.board import Board
from partita.executors.codec import Orders, Values, totals_values
from partita.executors.messages import receive
from partita.executors.output import Link, forward_output
from partita.executors.processes import receive_descriptor
from partita.executors.shared_memory import SharedTensors
from partita.executors.visits import Visits
from partita.params import Params
from partita.protocol import Start

SHARED = "shared"
"""The name of the shared part among the tensors that workers are given."""
_PATIENCE = 0.01
"""Seconds for which reports are kept, to be sent together; looked at when a visit ends. So a visit that takes
longer is reported at once."""


class Worker:
    """One worker process, with models and examples of its own.

    Args:
        connection: the connection with the parent.
        visits: carries out visits.
        board: has the orders to take.
        number: the number of this worker.
    """

    def __init__(self, connection: socket.socket, visits: Visits, board: Board, number: int) -> None:
        self._link = Link(connection)
        self._visits = visits
        self._board = board
        self._number = number
        self._given: dict[str, SharedTensors] = {}
        self._totals: SharedTensors | None = None

    def serve(self) -> None:
        """Do what the parent asks for until it closes the connection."""
        forward_output(self._link)
        while (message := receive(self._link.connection)) is not None:
            match message.values:
                case {"orders": _}:
                    self._take(Orders(message.values, self._given[SHARED].tensors, self._start))
                case {"tensors": name, "layout": layout}:
                    self._given[name] = SharedTensors(receive_descriptor(self._link.connection), layout)
                case {"processes": processes}:
                    ExampleCache.processes = processes
                case _:
                    raise ValueError(f"The parent sent what it should not: {sorted(message.values)!r}.")

    def _take(self, orders: Orders) -> None:
        """Take orders and carry them out until there are no more; then send the sums."""
        board, end = self._board, self._board.end
        reports = _Unsent()
        while (number := board.take(self._number)) is not None:
            if number >= min(end, board.end):
                continue
            board.begin(self._number, number)
            report = self._visits.carry_out(orders[number])
            board.leave(self._number)
            reports.add(number, report)
            if "error" in report:
                end = number
            if "error" in report or reports.are_old():
                self._link.send(reports.values(), tensors=reports.changes)
                reports = _Unsent()
        self._finish(reports)

    def _start(self, values: Values) -> Start:
        """Return the tensors that devices start with, as far as this worker was given them."""
        return Start(
            digest="",
            frozen="",
            personal=self._tensors(start_name(values["start"]["digest"])),
            pretrained=self._tensors(pretrained_name(values["start"]["frozen"])),
        )

    def _tensors(self, name: str) -> Params | None:
        return self._given[name].tensors if name in self._given else None

    def _finish(self, reports: "_Unsent") -> None:
        """Send the last reports, and the sums if there are any, in shared memory; begin new ones."""
        tally = self._visits.close()
        if tally is None:
            self._link.send({**reports.values(), "totals": None})
            return
        values, groups = totals_values(tally.totals)
        tensors = {f"{group}/{name}": each for group, some in groups.items() for name, each in some.items()}
        is_new = self._totals is None or not self._totals.fits(tensors)
        if self._totals is None or is_new:
            self._totals = SharedTensors.like(tensors)
        self._totals.write(tensors)
        layout = self._totals.layout if is_new else None
        message = {**reports.values(), "totals": values, "layout": layout}
        self._link.send(message, self._totals.descriptor if is_new else None)


class _Unsent:
    """Reports that have not been sent yet, with their numbers, which are added in place."""

    def __init__(self) -> None:
        self.changes: dict[str, Params] = {}
        """The changes that are not added up, by the numbers of their orders."""
        self._rows: list[list[Any]] = []
        self._begin = time.monotonic()
        self._seconds = time.process_time()

    def add(self, number: int, report: dict[str, Any]) -> None:
        """Add the report on an order, in place."""
        change = report.pop("change", None)
        if change is not None:
            self.changes[str(number)] = change
        self._rows.append([number, report])

    def are_old(self) -> bool:
        """Return whether it is time to send them; a change is not kept."""
        return bool(self.changes) or time.monotonic() - self._begin > _PATIENCE

    def values(self) -> dict[str, Any]:
        """Return them with the processor time since the last ones were sent."""
        return {"reports": self._rows, "seconds": time.process_time() - self._seconds}


def start_name(digest: str) -> str:
    """Return the name of a personal part that devices start with."""
    return f"start {digest}"


def pretrained_name(frozen: str) -> str:
    """Return the name of the tensors that are frozen after pretraining."""
    return f"pretrained {frozen}"
