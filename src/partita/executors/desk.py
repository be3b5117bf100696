"""The server's desk: the open order of each device, its reply, and what each device must know of its rounds.

Nothing here knows of sockets. The thread of the training loop opens orders and takes answers; the thread that
talks to devices looks up orders and hands in replies. An order is named by a nonce, so that a reply counts
once, for the order that it is to, or not at all.
"""

import hashlib
import queue
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.executors.codec import order_values
from partita.executors.replies import Expected, Refused, decoded_reply, expected_of
from partita.params import Params, to_bytes
from partita.protocol import DeviceId, Failure, Order, Reply

Wake = Callable[[Iterable[DeviceId]], None]
"""Tells waiting devices that there is something new for them."""


@dataclass
class Post:
    """An order on its way to a device."""

    order: Order
    nonce: str
    expected: Expected
    cohort: int
    """The number of devices that are asked in the same round."""
    tensors: Mapping[str, str]
    """The digests of the groups of tensors that the order needs, by group."""
    is_open: bool = True
    """Whether no reply has been accepted yet."""


@dataclass
class Ledger:
    """Facts that every answer to a device has: they decide which of its personal parts stands."""

    counted: dict[DeviceId, str] = field(default_factory=dict)
    """The label of the last committed round in which each device was counted."""
    restored: list[str] = field(default_factory=list)
    """The labels of rounds that devices have gone back to, in order."""


class Desk:
    """The orders that are open, one for each device at most.

    Args:
        ledger: what devices must be told; changed in place.
        wake: called when there are new orders, in the thread of the training loop.
    """

    def __init__(self, ledger: Ledger | None = None, wake: Wake = lambda devices: None) -> None:
        self.ledger = ledger or Ledger()
        self.wake = wake
        self._lock = threading.Lock()
        self._posts: dict[DeviceId, Post] = {}
        self._tensors: dict[str, bytes] = {}
        self._answers: queue.SimpleQueue[Reply | Failure] = queue.SimpleQueue()

    def open(self, orders: Sequence[Order], metrics: Sequence[str], *, cohort: int) -> None:
        """Open orders with the same shared part, in place of all that were open before.

        Args:
            orders: the orders, one for each device at most.
            metrics: the names of the task's metrics.
            cohort: the number of devices that are asked in the round.
        """
        posts, tensors = dict[DeviceId, Post](), _Tensors()
        for order in orders:
            nonce = secrets.token_hex(16)
            groups = tensors.of_order(order)
            expected = expected_of(order, nonce, metrics)
            posts[order.device] = Post(order, nonce, expected, cohort, groups)
        with self._lock:
            self._posts, self._tensors = posts, tensors.content
            self._answers = queue.SimpleQueue()
        self.wake(posts)

    def close(self) -> list[DeviceId]:
        """Withdraw all orders, so that no further reply counts; return the devices that had not answered."""
        with self._lock:
            missing = [device for device, post in self._posts.items() if post.is_open]
            self._posts, self._tensors = {}, {}
        return missing

    def next_answer(self, timeout: float | None) -> Reply | Failure | None:
        """Return the next answer that was handed in, each once; None if there is none in time."""
        try:
            return self._answers.get(timeout=timeout)
        except queue.Empty:
            return None

    def find(self, device: DeviceId) -> Post | None:
        """Return the open order of a device, if it has one."""
        with self._lock:
            post = self._posts.get(device)
            return post if post is not None and post.is_open else None

    def tensors(self, digest: str) -> bytes | None:
        """Return a group of tensors of the open orders in the safetensors format, by its digest."""
        with self._lock:
            return self._tensors.get(digest)

    def named(self, device: DeviceId, nonce: str) -> Post:
        """Return the order of a device with a nonce, answered or not.

        Raises:
            Refused: the device has no such order.
        """
        with self._lock:
            post = self._posts.get(device)
        if post is None or not secrets.compare_digest(post.nonce.encode(), nonce.encode()):
            raise Refused("There is no such order: its round is over, or it is another device's.")
        return post

    def hand_in(self, post: Post, content: bytes) -> bool:
        """Check a reply to an order and hand in its answer; return whether it counts, False if repeated.

        Raises:
            Refused: it is not an answer to the order, which its device has therefore failed; or it is late.
        """
        try:
            answer = decoded_reply(content, post.expected) if post.is_open else None
        except Refused as error:
            self.fail(post, str(error))
            raise
        return answer is not None and self._accept(post, answer)

    def fail(self, post: Post, reason: str) -> None:
        """Count an order as failed, because what its device has sent is refused."""
        self._accept(post, Failure(device=post.order.device, reason=f"The reply was refused: {reason}"))

    def _accept(self, post: Post, answer: Reply | Failure) -> bool:
        with self._lock:
            if self._posts.get(post.order.device) is not post:
                raise Refused("The reply is late: its round is over.")
            is_first, post.is_open = post.is_open, False
            if is_first:
                self._answers.put(answer)
            return is_first

    def told(self, device: DeviceId) -> dict[str, Any]:
        """Return what a device must know of its rounds, as JSON values."""
        with self._lock:
            return {"counted": self.ledger.counted.get(device), "restored": list(self.ledger.restored)}

    def settle(self, label: str, counted: Iterable[DeviceId]) -> None:
        """Record that a round is committed in which some devices were counted."""
        with self._lock:
            self.ledger.counted |= dict.fromkeys(counted, label)

    def restore(self, label: str) -> None:
        """Record that devices go back to a round."""
        with self._lock:
            if label not in self.ledger.restored:
                self.ledger.restored.append(label)


def post_values(post: Post, content: Callable[[str], bytes | None]) -> dict[str, Any]:
    """Return an order as JSON values, with the digest and the size of each group of tensors."""
    sizes = {group: len(content(digest) or b"") for group, digest in post.tensors.items()}
    return {
        "nonce": post.nonce,
        "cohort": post.cohort,
        "order": order_values(post.order),
        "tensors": {
            group: {"digest": digest, "bytes": sizes[group]} for group, digest in post.tensors.items()
        },
    }


class _Tensors:
    """The groups of tensors of orders in the safetensors format, each encoded once."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self._digests: dict[int, str] = {}
        self._kept: list[Params] = []

    def of_order(self, order: Order) -> dict[str, str]:
        """Return the digest of each group that an order needs."""
        start = order.start
        groups = {"shared": order.shared, "personal": start.personal, "pretrained": start.pretrained}
        return {name: self._digest(group) for name, group in groups.items() if group is not None}

    def _digest(self, params: Params) -> str:
        if id(params) not in self._digests:
            content = to_bytes(params)
            digest = hashlib.sha256(content).hexdigest()
            self.content[digest] = content
            self._digests[id(params)] = digest
            self._kept.append(params)  # So that no other object gets its id.
        return self._digests[id(params)]
