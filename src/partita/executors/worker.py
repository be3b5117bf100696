"""A worker process: it visits the devices that it is given, and adds up their changes."""

import socket

from partita.data.cache import ExampleCache
from partita.executors.codec import Values, order_of, totals_values
from partita.executors.messages import receive
from partita.executors.output import Link, forward_output
from partita.executors.processes import receive_descriptor
from partita.executors.shared_memory import SharedTensors
from partita.executors.visits import Visits
from partita.params import Params
from partita.protocol import Order, Start

SHARED = "shared"
"""The name of the shared part among the tensors that workers are given."""


class Worker:
    """One worker process, with models and examples of its own.

    Args:
        connection: the connection with the parent.
        visits: carries out visits.
    """

    def __init__(self, connection: socket.socket, visits: Visits) -> None:
        self._link = Link(connection)
        self._visits = visits
        self._given: dict[str, SharedTensors] = {}
        self._totals: SharedTensors | None = None

    def serve(self) -> None:
        """Do what the parent asks for until it closes the connection."""
        forward_output(self._link)
        while (message := receive(self._link.connection)) is not None:
            match message.values:
                case {"order": values}:
                    report = self._visits.carry_out(self._order(values))
                    change = report.pop("change", None)
                    self._link.send(report, tensors=None if change is None else {"change": change})
                case {"tensors": name, "layout": layout}:
                    self._given[name] = SharedTensors(receive_descriptor(self._link.connection), layout)
                case {"processes": processes}:
                    ExampleCache.processes = processes
                case _:
                    self._send_totals()

    def _order(self, values: Values) -> Order:
        """Return an order with the tensors that this worker was given."""
        start = Start(
            digest="",
            frozen="",
            personal=self._tensors(start_name(values["start"]["digest"])),
            pretrained=self._tensors(pretrained_name(values["start"]["frozen"])),
        )
        return order_of(values, self._given[SHARED].tensors, start)

    def _tensors(self, name: str) -> Params | None:
        return self._given[name].tensors if name in self._given else None

    def _send_totals(self) -> None:
        """Write the sums to shared memory, tell the parent, and begin new ones."""
        tally = self._visits.close()
        assert tally is not None, "The parent asks for sums only if there are some."
        values, groups = totals_values(tally.totals)
        tensors = {f"{group}/{name}": each for group, some in groups.items() for name, each in some.items()}
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
