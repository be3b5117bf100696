"""Devices on the ranks of a launcher, torchrun's for example, on one machine or on many.

Rank 0 does everything but the visits alone: it owns the run's folder and the personal parts in it. It visits
devices too, and hands out the others to the other ranks, the largest device first, so that ranks of different
speed finish at about the same time. The personal part of a device travels to the rank that visits it and back
in the message around order and answer: `Order` and `Reply` have no place for it.

Each rank adds up the changes of its devices as integers, so the mean has the same bits however the devices
were divided. docs/decisions/cluster.md says why these sums take the same connection as everything else.
"""

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from partita.device.store import Store
from partita.errors import ConfigError
from partita.executors.codec import order_values, totals_of
from partita.executors.exchange import Reports, exchanges_of, largest_first
from partita.executors.handout import Handout, Result
from partita.executors.messages import Message
from partita.executors.output import Replay
from partita.executors.peers import Peer, Peers
from partita.executors.serial import SerialExecutor
from partita.executors.visits import Visits
from partita.params import Params
from partita.protocol import DeviceId, Evaluate, Failure, Order, Reply, Tally
from partita.tasks.build import preserved_random_state

logger = logging.getLogger(__name__)

_OTHER_INSTRUCTIONS = (
    "%s computes with %s instructions and rank 0 with %s: results depend slightly on which rank visits a "
    "device, so the same run may have other bits the next time."
)


class ClusterExecutor:
    """Visits devices on all ranks; the executor of rank 0.

    Args:
        peers: the other ranks.
        serial: the executor for rank 0's own visits.
        store: storage of personal parts, that of `serial`.
        described: values and tensors from which the other ranks build the same run.
        local: the number of rank 0 among the ranks of its machine.
    """

    def __init__(
        self,
        peers: Peers,
        serial: SerialExecutor,
        store: Store,
        described: tuple[Mapping[str, Any], Mapping[str, Params]],
        *,
        local: int = 0,
    ) -> None:
        self.seconds = 0.0
        """The processor time of the other ranks' visits."""
        self._peers = peers
        self._serial = serial
        self._store = store
        self._described = described
        self._routes = {peer.rank: _Route(peer) for peer in peers.all}
        # Ctrl-C and the loss of a rank are not caught: they end the run at once.
        self._visits = Visits(
            serial.task.skipped, partial(serial.make_visitor, worker=local), caught=Exception
        )
        self._replay = Replay()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Let the other ranks build the run.

        Raises:
            ConfigError: a rank cannot: its data or its software differs.
        """
        arrived: queue.SimpleQueue[tuple[Peer, Message]] = queue.SimpleQueue()
        self._peers.receiver = lambda peer, message: (
            arrived.put((peer, message)) if "kind" in message.values else self._replay(message.values)
        )
        own = torch.backends.cpu.get_cpu_capability()
        for peer in self._peers.all:
            peer.post({"kind": "job", **self._described[0]}, self._described[1])
        refused: dict[int, str] = {}
        for _ in self._peers.all:
            peer, message = arrived.get()
            if message.values["kind"] == "refused":
                refused[peer.rank] = f"{peer.title}: {message.values['line']}"
            elif message.values["instructions"] != own:
                logger.warning(_OTHER_INSTRUCTIONS, peer.title, message.values["instructions"], own)
        if refused:
            raise ConfigError(refused[min(refused)])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing: the other ranks wait for the next run, or for the end."""

    def devices(self) -> Sequence[DeviceId]:
        """Return the task's devices."""
        return self._serial.devices()

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Visit devices here and on the other ranks at the same time."""
        orders = list(orders)
        for some in exchanges_of(orders):
            yield from self._ask(some)
        self._serial.sync(orders)

    def _ask(self, orders: Sequence[Order]) -> Iterator[Reply | Tally | Failure]:
        """Carry out orders with the same shared part."""
        task, reports = self._serial.task, Reports(orders)
        handout = Handout(largest_first(orders, task.devices.size), ranks=len(self._routes) + 1)
        self._peers.receiver = lambda peer, message: self._receive(handout, peer, message)
        for route in self._routes.values():
            route.begin(orders)
            self._feed(handout, route)
        try:
            for result in self._results(handout, orders):
                if isinstance(result, Tally):
                    yield result
                elif (answer := reports.add(*result)) is not None:
                    yield answer
                else:
                    handout.keep_below(reports.end)
        finally:
            reports.log(self._serial.warn, task.skipped.add)
        reports.raise_first()

    def _results(self, handout: Handout, orders: Sequence[Order]) -> Iterator[Result]:
        """Carry out orders on this rank while there are any, and yield its results and those of others."""
        with preserved_random_state(self._visits.visitor.accelerator):
            while (number := handout.take()) is not None:
                yield number, self._visits.carry_out(orders[number])
                yield from handout.arrived()
        if (tally := self._visits.close()) is not None:
            yield tally
        yield from handout.rest(sum(route.is_used for route in self._routes.values()))

    def close(self, label: str, counted: Sequence[DeviceId], asked: Sequence[DeviceId]) -> None:
        """Commit the new personal parts of the counted devices."""
        self._serial.close(label, counted, asked)

    def restore(self, label: str) -> None:
        """Let every device go back to what it has preserved for a label."""
        self._serial.restore(label)

    def _receive(self, handout: Handout, peer: Peer, message: Message) -> None:
        """Take what a rank sends, in the thread that receives from it; an error is for the main thread."""
        values, route = message.values, self._routes[peer.rank]
        try:
            match values.get("kind"):
                case "report":
                    self._take_report(handout, route, message)
                    self._feed(handout, route)
                case "closed":
                    if "totals" in values:
                        totals = totals_of(values["totals"], message.tensors)
                        handout.put(Tally(devices=values["devices"], totals=totals))
                    handout.put(None)
                case _:
                    self._replay(values)
        except Exception as error:
            handout.put(error)

    def _take_report(self, handout: Handout, route: "_Route", message: Message) -> None:
        """Save the new personal part that came with the report on a visit, and hand the report on."""
        values, personal = message.values, message.tensors.get("personal")
        number = handout.reported(route.peer.rank)
        order = route.orders[number]
        if personal is not None:
            if values["preserves"] and order.keep is not None:
                self._store.preserve(order.device, order.keep)
            self._store.save(order.device, order.label, personal)
        if "error" in values:
            values["error"]["notes"].append(f"On {route.peer}.")
        with self._lock:
            self.seconds += values["seconds"]
        handout.put((number, {**values, "change": message.tensors.get("change")}))

    def _feed(self, handout: Handout, route: "_Route") -> None:
        """Send a rank its next orders; when there are no more, ask for its sums."""
        with route.lock:
            while (number := handout.take_for(route.peer.rank)) is not None:
                order = route.orders[number]
                if order.counted is not None:
                    self._store.commit(order.counted, [order.device], [order.device])
                route.send(order, self._store.load(order.device) if _uses_personal(order) else None)
            if handout.is_empty:
                route.close()


class _Route:
    """The orders of a round on their way to a rank, and the tensors that the rank has already."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.lock = threading.Lock()
        self.is_used = False
        """Whether the rank has an order in this round."""
        self._is_closed = False
        self.orders: Sequence[Order] = ()
        """The orders of the round, numbered from 0."""
        self._shared: Params | None = None
        self._starts: set[str] = set()

    def begin(self, orders: Sequence[Order]) -> None:
        """Begin a round, in place."""
        self.orders, self.is_used, self._is_closed = orders, False, False

    def send(self, order: Order, kept: Params | None) -> None:
        """Send an order with what its device keeps; before the first one, what all of the round need."""
        if not self.is_used:
            self.is_used = True
            self.peer.post(*self._needed())
        values = {"order": {**order_values(order), "counted": None}, "start": _key(order)}
        self.peer.post({"kind": "order", **values}, {} if kept is None else {"personal": kept})

    def close(self) -> None:
        """Ask for the rank's sums, once, if it has orders."""
        if self.is_used and not self._is_closed:
            self._is_closed = True
            self.peer.post({"kind": "close"})

    def _needed(self) -> tuple[dict[str, Any], dict[str, Params]]:
        """Return the message that begins a round, with those tensors of all orders that the rank lacks."""
        shared, tensors = self.orders[0].shared, dict[str, Params]()
        if not _are_same(shared, self._shared):
            tensors["shared"] = self._shared = shared
        new = {_key(order): order.start for order in self.orders if _key(order) not in self._starts}
        for key, start in new.items():
            groups = {f"personal {key}": start.personal, f"pretrained {key}": start.pretrained}
            tensors |= {name: group for name, group in groups.items() if group is not None}
        self._starts |= new.keys()
        return {"kind": "round", "starts": list(new)}, tensors


def _are_same(params: Params, others: Params | None) -> bool:
    """Return whether these are the same tensors: a server's step makes new ones, and none is changed."""
    if others is None:
        return False
    return params.keys() == others.keys() and all(params[name] is others[name] for name in params)


def _key(order: Order) -> str:
    return f"{order.start.digest} {order.start.frozen}"


def _uses_personal(order: Order) -> bool:
    """Return whether a visit needs what its device keeps."""
    return not (isinstance(order.work, Evaluate) and order.work.model == "global")
