"""The other ranks' side of a run: they visit the devices that rank 0 hands out, until it ends.

The personal part of a device comes with its order and goes back with its answer, in the message and not in
the order or the reply themselves: nothing of it stays here. Changes of the shared part are added up here, and
only their sum is sent.
"""

import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from partita.device.roles import Role
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.executors.codec import answer_values, order_of, totals_values
from partita.executors.messages import Message, receive, send
from partita.executors.notices import Collected, error_values
from partita.executors.parcel import Parcel
from partita.executors.peers import end_process, why_gone
from partita.params import Params, WeightedMean
from partita.protocol import DeviceId, Failure, Reply, Stage, Start
from partita.tasks.build import one_thread
from partita.tasks.task import Task

_GRACE = 2
"""Seconds after a signal in which rank 0, which may have got it too, can end this rank."""
_INTERRUPTED = 130
"""The exit code after a signal."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run as a rank has built it."""

    task: Task
    roles: Mapping[Stage, Role]
    seed: int


class Rank:
    """A rank other than 0, connected to rank 0.

    Args:
        connection: the connection to rank 0.
        build: returns the job that a message describes, or raises a `ConfigError`.
    """

    def __init__(self, connection: socket.socket, build: Callable[[Message], Job]) -> None:
        self._connection = connection
        self._build = build
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._warnings = Collected()
        self._job: Job | None = None
        self._reported = 0

    def serve(self) -> int:
        """Do what rank 0 asks until it ends, and return its exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: _end_soon())
        with self._warnings.installed():
            threading.Thread(target=self._watch, daemon=True).start()
            while (message := self._inbox.get()).values["kind"] != "end":
                self._handle(message)
        return message.values["code"]

    def _watch(self) -> None:
        """Receive messages in a thread of its own, which ends the process if rank 0 fails or is gone."""
        try:
            while (message := receive(self._connection)) is not None:
                if message.values.get("code"):
                    end_process(message.values["code"], message.values["line"])
                self._inbox.put(message)
                if message.values["kind"] == "end":
                    return
        except OSError as error:
            self._lose(error)
        self._lose(None)

    def _lose(self, error: OSError | None) -> NoReturn:
        end_process(1, f"Rank 0 is gone: {why_gone(error)}.")

    def _handle(self, message: Message) -> None:
        match message.values["kind"]:
            case "job":
                self._begin(message)
            case "round":
                self._open(message)
            case "order":
                self._carry_out(message)
            case _:
                self._close()

    def _begin(self, message: Message) -> None:
        """Build a job, and say whether that is possible."""
        try:
            job = self._build(message)
        except ConfigError as error:
            self._send({"kind": "refused", "line": str(error)})
            return
        self._job, self._parcel, self._reported = job, Parcel(), 0
        self._visit = Visitor(job.task, job.roles, self._parcel, seed=job.seed)
        self._starts: dict[str, Start] = {}
        self._send({"kind": "ready"})

    def _open(self, message: Message) -> None:
        """Begin a round: with a new shared part, and with starts that this rank does not have."""
        values, tensors = message.values, message.tensors
        if "shared" in tensors:
            self._shared = tensors["shared"]
        for key in values["starts"]:
            personal, pretrained = tensors.get(f"personal {key}"), tensors.get(f"pretrained {key}")
            self._starts[key] = Start(digest="", personal=personal, frozen="", pretrained=pretrained)
        self._mean = WeightedMean(self._shared) if values["adds_up"] else None
        self._summed: list[DeviceId] = []

    def _carry_out(self, message: Message) -> None:
        """Visit a device and send its answer."""
        start = self._starts[message.values["start"]]
        order = order_of(message.values["order"], self._shared, start)
        self._parcel.fill(message.tensors.get("personal"))
        begin = time.process_time()
        try:
            with one_thread():
                answer = self._add(self._visit(order))
        except Exception as error:
            self._send({"kind": "error", **error_values(error)})
            return
        self._answer(answer, time.process_time() - begin)

    def _add(self, answer: Reply | Failure) -> Reply | Failure:
        """Add the change of a reply to the sum, in place, and return the answer without it."""
        if isinstance(answer, Failure) or answer.change is None or self._mean is None:
            return answer
        try:
            self._mean.add(answer.device, answer.change, answer.weight)
        except ValueError as error:
            return Failure(device=answer.device, reason=str(error))
        self._summed.append(answer.device)
        return replace(answer, change=None)

    def _answer(self, answer: Reply | Failure, seconds: float) -> None:
        """Send an answer, with the new personal part if the device keeps one."""
        saved = self._parcel.saved if isinstance(answer, Reply) else None
        values = {"kind": "answer", "answer": answer_values(answer), "seconds": seconds}
        preserves = saved is not None and self._parcel.preserves
        self._send({**values, "preserves": preserves}, {} if saved is None else {"personal": saved})

    def _close(self) -> None:
        """End a round: send the sums, if there are any."""
        if self._mean is None or not self._summed:
            self._send({"kind": "closed"})
            return
        values, tensors = totals_values(self._mean.totals())
        self._send({"kind": "closed", "devices": self._summed, "totals": values}, tensors)
        self._mean = None

    def _send(self, values: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> None:
        """Send a message, with the warnings and the skipped rows since the last one."""
        skipped = list(self._job.task.skipped)[self._reported :] if self._job else []
        self._reported += len(skipped)
        news = {"warnings": self._warnings.take(), "skipped": [asdict(row) for row in skipped]}
        try:
            send(self._connection, {**values, **news}, tensors)
        except OSError as error:
            self._lose(error)


def _end_soon() -> None:
    """End this process after a signal, unless rank 0 does so first: it may have got the same signal."""

    def end() -> None:
        threading.Event().wait(_GRACE)
        end_process(_INTERRUPTED, "")

    threading.Thread(target=end, daemon=True).start()
