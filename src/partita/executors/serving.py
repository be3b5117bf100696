"""The other ranks' side of a run: they visit the devices that rank 0 hands out, until it ends.

The personal part of a device comes with its order and goes back with its answer, in the message and not in
the order or the reply themselves: nothing of it stays here. Changes of the shared part are added up here, and
only their sum is sent.
"""

import contextlib
import io
import logging
import queue
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

import torch

from partita.device.store import Store
from partita.device.visit import Visitor
from partita.errors import ConfigError
from partita.executors.codec import answer_of, order_of, totals_values
from partita.executors.messages import Message, receive
from partita.executors.output import Link, forward_output
from partita.executors.parcel import Parcel
from partita.executors.peers import end_process, why_gone
from partita.executors.visits import Visits
from partita.params import Params
from partita.protocol import Reply, Start

Build = Callable[[Message, Store], Visitor]
"""Builds the run that a message describes, with a store, or raises a `ConfigError`."""

_LAUNCHER = 2.0
"""Seconds in which further signals are the same request: launchers pass on a Ctrl-C that ranks get anyway."""
_INTERRUPTED = 130
"""The exit code after a signal."""


class Rank:
    """A rank other than 0, connected to rank 0.

    Args:
        connection: the connection to rank 0.
        build: builds the run.
    """

    def __init__(self, connection: socket.socket, build: Build) -> None:
        self._link = Link(connection)
        self._build = build
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def serve(self) -> int:
        """Do what rank 0 asks until it ends, and return its exit code."""
        interrupt = _Interrupt()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt)
        threading.Thread(target=self._watch, daemon=True).start()
        forward_output(self._link)
        while (message := self._inbox.get()).values["kind"] != "end":
            self._handle(message)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        return message.values["code"]

    def _watch(self) -> None:
        """Receive messages in a thread of its own, which ends the process if rank 0 fails or is gone."""
        try:
            while (message := receive(self._link.connection)) is not None:
                if message.values.get("code"):
                    end_process(message.values["code"], message.values["line"])
                self._inbox.put(message)
                if message.values["kind"] == "end":
                    return
        except Exception as error:
            self._lose(error)
        self._lose(None)

    def _lose(self, error: Exception | None) -> NoReturn:
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
        """Build a run, without a word, since rank 0 builds the same, and say whether that is possible."""
        self._parcel = Parcel()
        try:
            with _silence():
                visitor = self._build(message, self._parcel)
        except ConfigError as error:
            self._send({"kind": "refused", "line": str(error)})
            return
        self._visits = Visits(visitor.task.skipped, lambda: visitor)
        self._starts: dict[str, Start] = {}
        self._send({"kind": "ready", "instructions": torch.backends.cpu.get_cpu_capability()})

    def _open(self, message: Message) -> None:
        """Begin a round: with a new shared part, and with starts that this rank does not have."""
        values, tensors = message.values, message.tensors
        if "shared" in tensors:
            self._shared = tensors["shared"]
        for key in values["starts"]:
            personal, pretrained = tensors.get(f"personal {key}"), tensors.get(f"pretrained {key}")
            self._starts[key] = Start(digest="", personal=personal, frozen="", pretrained=pretrained)

    def _carry_out(self, message: Message) -> None:
        """Visit a device and send the report, with the new personal part where the device has replied."""
        order = order_of(message.values["order"], self._shared, self._starts[message.values["start"]])
        self._parcel.fill(message.tensors.get("personal"))
        begin = time.process_time()
        report = self._visits.carry_out(order)
        seconds = time.process_time() - begin
        has_replied = "answer" in report and isinstance(answer_of(report["answer"]), Reply)
        tensors = {"personal": saved} if has_replied and (saved := self._parcel.saved) is not None else {}
        if (change := report.pop("change", None)) is not None:
            tensors["change"] = change
        values = {"kind": "report", "preserves": self._parcel.preserves, "seconds": seconds}
        self._send({**values, **report}, tensors)

    def _close(self) -> None:
        """End a round: send the sums, if there are any."""
        if (tally := self._visits.close()) is None:
            self._send({"kind": "closed"})
            return
        values, tensors = totals_values(tally.totals)
        self._send({"kind": "closed", "devices": tally.devices, "totals": values}, tensors)

    def _send(self, values: Mapping[str, Any], tensors: Mapping[str, Params] | None = None) -> None:
        try:
            self._link.send(values, tensors=tensors)
        except OSError as error:
            self._lose(error)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop all output of this process in this block."""
    logging.disable()
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


class _Interrupt:
    """Ends this process at the second signal, as rank 0 does.

    After the first, rank 0, which has got it too, ends its round and then this rank. If rank 0 is gone, the
    thread that receives from it notices.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first >= _LAUNCHER:
            end_process(_INTERRUPTED, "")
