"""The server's end of Flower: it brings orders to the nodes of a grid, and their replies to the desk.

A node is asked which device it is before it gets an order, and has one message at a time. A message that
fails, because the node has crashed for example, is sent again: the order's nonce is the same, so a device
that has done the order already answers with its stored reply, and a reply counts once.
"""

# pyright: reportMissingImports=false
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid

from partita.deploy.flower.records import REPLY, array_of, bytes_in, records_of, values_in
from partita.deploy.hub import Hub
from partita.errors import one_line
from partita.executors.desk import Post
from partita.executors.replies import Refused
from partita.protocol import DeviceId

logger = logging.getLogger(__name__)

_AGAIN = 15.0
"""Seconds before a node that could not answer gets another message."""
_PAUSE = 0.25
"""Seconds between two looks at the grid."""
_MAX_TEXT = 300
"""The most characters of a text of a node in a log message."""


@dataclass
class _Node:
    """A node of the grid, the device that it is, and the message that is on its way."""

    number: int
    device: DeviceId | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """The introduction of the device: its id, and digests of all that it computes with."""
    message: str | None = None
    """The id of the message that it has not answered yet."""
    post: Post | None = None
    """The order in that message, if it is one."""
    earliest: float = 0.0
    """The time before which it gets no message."""
    is_dismissed: bool = False
    """Whether it knows that the run is over."""


class Courier:
    """Carries messages between a hub and the nodes of a grid.

    Args:
        hub: the devices that take part, and the messages for them.
        grid: the grid.
        clock: returns the time in seconds.
    """

    def __init__(self, hub: Hub, grid: Grid, clock: Callable[[], float] = time.monotonic) -> None:
        self._hub = hub
        self._grid = grid
        self._clock = clock
        self._nodes: dict[int, _Node] = {}
        self._arrays: dict[str, Array] = {}

    def step(self) -> None:
        """Look which nodes are there, take their answers and send what is due."""
        self._notice()
        self._collect()
        for node in self._nodes.values():
            if node.device is not None:
                self._hub.refusal(node.device, node.about)  # A node that is there counts as connected.
            if node.message is None and self._clock() >= node.earliest:
                self._send(node)

    def _notice(self) -> None:
        """Forget the nodes that are gone: if one comes back, it is asked again which device it is."""
        present = set(self._grid.get_node_ids())
        self._nodes = {number: node for number, node in self._nodes.items() if number in present}
        for number in sorted(present - self._nodes.keys()):
            self._nodes[number] = _Node(number)

    def _send(self, node: _Node) -> None:
        if node.device is None:
            self._push(node, "query", records_of({"kind": "join"}))
            return
        message = self._hub.message(node.device)
        if message["kind"] == "order":
            self._send_order(node, node.device, message)
        elif message["kind"] == "done" and not node.is_dismissed:
            self._push(node, "query", records_of(message))

    def _send_order(self, node: _Node, device: DeviceId, message: Mapping[str, Any]) -> None:
        arrays = {name: self._array(group["digest"]) for name, group in message["tensors"].items()}
        present = {name: array for name, array in arrays.items() if array is not None}
        post = self._hub.desk.find(device)
        if post is None or post.nonce != message["nonce"] or len(present) < len(arrays):
            return  # The round has just ended.
        kind = "evaluate" if message["order"]["work"]["kind"] == "Evaluate" else "train"
        self._push(node, kind, records_of(message, present), post)

    def _array(self, digest: str) -> Array | None:
        """Return tensors of an open order as an array, made once for all devices."""
        content = self._hub.desk.tensors(digest)
        if content is None:
            return None
        if digest not in self._arrays:
            own = self._hub.desk.tensors
            self._arrays = {known: array for known, array in self._arrays.items() if own(known) is not None}
            self._arrays[digest] = array_of(content)
        return self._arrays[digest]

    def _push(self, node: _Node, kind: str, records: RecordDict, post: Post | None = None) -> None:
        sent = Message(records, dst_node_id=node.number, message_type=kind)
        node.message, node.post = next(iter(self._grid.push_messages([sent])), None), post
        if not node.message:  # The node has just gone, or the grid does not take the message.
            self._wait(node, "Flower did not take the message")

    def _collect(self) -> None:
        """Take the answers that have arrived."""
        waiting = {node.message: node for node in self._nodes.values() if node.message is not None}
        if not waiting:
            return
        for reply in self._grid.pull_messages(list(waiting)):
            if (node := waiting.pop(reply.metadata.reply_to_message_id, None)) is None:
                continue
            post, node.post, node.message = node.post, None, None
            self._take(node, post, reply)

    def _take(self, node: _Node, post: Post | None, reply: Message) -> None:
        if reply.has_error():
            self._wait(node, f"error {reply.error.code} of Flower, {reply.error.reason}")
            return
        values = values_in(reply)
        if "problem" in values:
            self._wait(node, f"{values['problem']}; its own log says more")
        elif node.device is None:
            self._meet(node, values)
        elif post is not None:
            self._hand_in(node.device, post, bytes_in(reply).get(REPLY))
        else:
            node.is_dismissed = True
            self._hub.dismiss(node.device)

    def _meet(self, node: _Node, values: Mapping[str, Any]) -> None:
        """Let the device of a node take part, unless it is another node's or computes with something else."""
        device = values.get("device")
        if not isinstance(device, str) or not device:
            self._wait(node, "it does not say which device it is")
        elif any(other.device == device for other in self._nodes.values()):
            self._wait(node, f"another node is the device {device!r} already")
        elif (reason := self._hub.refusal(device, values)) is not None:
            self._wait(node, f"device {device!r} is refused: {reason}")
        else:
            node.device, node.about = device, values

    def _hand_in(self, device: DeviceId, post: Post, content: bytes | None) -> None:
        """Hand in a reply, which is checked there; one that is refused is a failure of its device."""
        desk, largest = self._hub.desk, post.expected.largest
        try:
            if content is None or len(content) > largest:
                size = "no content" if content is None else f"{len(content)} bytes, more than {largest}"
                desk.fail(post, f"It has {size}.")
            elif not desk.hand_in(post, content):
                logger.warning("Device %r has sent a reply again, which does not count.", device)
        except Refused as error:
            logger.warning("A reply of device %r was refused: %s", device, error)

    def _wait(self, node: _Node, reason: str) -> None:
        """Send the node nothing for a while, because something went wrong."""
        node.message, node.post, node.earliest = None, None, self._clock() + _AGAIN
        who = f"Node {node.number}" if node.device is None else f"Device {node.device!r}"
        logger.warning(
            "%s is asked again in %d s: %s.", who, _AGAIN, one_line(reason)[:_MAX_TEXT].rstrip(".")
        )


def carry_while(courier: Courier, work: Callable[[], None]) -> None:
    """Do some work in a thread of its own, and carry messages until it has ended.

    An exception in either ends both; the work, which waits for answers, ends with the process.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="partita-server", daemon=True)
    thread.start()
    while thread.is_alive():
        courier.step()
        thread.join(_PAUSE)
    if errors:
        raise errors[0]
