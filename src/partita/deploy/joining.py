"""One device on a machine of its own: it asks the server for orders, carries them out and replies.

Model, partition and method are the device's own. An order brings numbers alone: the shared part, rates and
the labels of rounds. The personal part is loaded from the device's home and saved there.
"""

import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from partita.config.building import Built
from partita.deploy.building import differing
from partita.deploy.home import RunHome
from partita.deploy.link import Link, Rejected, persistently
from partita.deploy.messages import BadMessage, Group, Message, message_of
from partita.deploy.outbox import Outbox, about_content, about_reply
from partita.deploy.policy import Forbidden, Policy
from partita.errors import ConfigError
from partita.executors.replies import encoded_reply
from partita.params import Params, from_bytes
from partita.partition import PARTS
from partita.protocol import DeviceId, Evaluate, Failure, Order, Reply
from partita.studies.rank_job import own_visits

logger = logging.getLogger(__name__)

_PAUSE = 1.0
"""The least seconds between two requests of a device that has nothing to do."""
_MAX_HEADER = 2**24
"""The most bytes of the names and shapes of a group of tensors."""
_OWN_REASONS = re.compile(
    r"The loss became (nan|-?inf) in step \d+\."
    r"|The (personal part|change of the shared part) is not finite in `[^`]*`\."
    r"|The device has no training examples\."
    r"|(The device has one training example|`batch_size` is 1): BatchNorm needs at least 2 in a batch to "
    r"train\."
)
"""The reasons of a failure that Partita gives. The text of a task's own may quote data, and stays here."""

Report = Callable[[Mapping[str, Any]], None]
"""Called with what has happened, as JSON values."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A device: what it computes with, and what it allows."""

    device: DeviceId
    home: Path
    built: Built
    seed: int
    computes: Mapping[str, str]
    """Digests of all that it computes with, by name."""
    policy: Policy
    report: Report = lambda values: None


class Participant:
    """A device's part in one run.

    Args:
        joined: the device.
        run: the id of the run.
        link: the link to the server.
        outbox: the record of what leaves.
    """

    def __init__(self, joined: Joined, run: str, link: Link, outbox: Outbox) -> None:
        self.run = run
        self.home = RunHome(joined.home, run, joined.device)
        self._joined = joined
        self._link = link
        self._outbox = outbox
        self._visits = own_visits(joined.built, self.home.store, seed=joined.seed)
        self._roles = self._visits.make_visitor().roles
        self._groups: dict[str, tuple[str, Params]] = {}
        self._largest = _largest_group(joined.built)

    def take(self, message: Message) -> None:
        """Do what a message says.

        Raises:
            ConfigError: the server computes with something else.
        """
        if names := differing(self._joined.computes, message.computes):
            raise ConfigError(f"The server's order is for another {', '.join(names)} than this device's.")
        stored = self.home.stored_reply(message.nonce) if message.kind == "order" else None
        # As long as a reply may still be counted, its round is not over.
        self.home.settle(message.counted, keeps=message.kind == "wait" or stored is not None)
        self.home.restore(message.restored)
        if message.kind != "order":
            return
        if stored is not None:
            self._outbox.write({"run": self.run, "purpose": "repeated reply", **about_content(stored)})
            self._send(message.nonce, stored)
        else:
            self._answer(message)

    def _answer(self, message: Message) -> None:
        """Carry out an order, then store, record and send the reply, in this order."""
        try:
            order = message.order_with(self._fetch(message.groups or {}))
        except Rejected as error:  # The round is over.
            logger.warning("An order was withdrawn: %s", error)
            return
        answer = self._carry_out(order, message.cohort)
        if isinstance(answer, Reply) and isinstance(order.work, Evaluate):
            self.home.add_result(order.stage, answer.metrics)
            if order.work.model == "personal":
                self.home.keep_model({name: own for name, (_, own) in self._groups.items()})
        content = encoded_reply(message.nonce, answer)
        self.home.store_reply(content)
        self._outbox.write({"run": self.run, **about_reply(order, answer, content)})
        self._send(message.nonce, content)
        self._joined.report(_event(order, answer))

    def _fetch(self, groups: Mapping[str, Group]) -> dict[str, Params]:
        """Return the tensors of an order; those that the device has already are not fetched."""
        for name, group in groups.items():
            if group.bytes > self._largest:
                raise BadMessage(
                    f"The server's order has {group.bytes} bytes of tensors, and this device's model at most "
                    f"{self._largest}."
                )
            if self._groups.get(name, ("", {}))[0] != group.digest:
                content = persistently(lambda group=group: self._link.tensors(group.digest, group.bytes))
                try:
                    self._groups[name] = group.digest, from_bytes(content)
                except SafetensorError as error:
                    raise BadMessage(f"The server has sent no tensors: {error}.") from None
        return {name: self._groups[name][1] for name in groups}

    def _carry_out(self, order: Order, cohort: int) -> Reply | Failure:
        """Visit the device, unless its policy forbids that; details that may show data stay here."""
        device = self._joined.device
        try:
            self._joined.policy.check_order(order, cohort, self._roles)
            (answer,) = self._visits.ask([replace(order, single=True)])
            if isinstance(answer, Reply):
                self._joined.policy.check_reply(order, answer)
                return answer
            assert isinstance(answer, Failure), "A visit of one device is not added up."
            return Failure(device=device, reason=_reason_to_send(answer.reason))
        except Forbidden as error:
            return Failure(device=device, reason=str(error))
        except Exception as error:
            traceback.print_exception(error)
            return Failure(device=device, reason=f"The visit ended with {type(error).__name__}.")

    def _send(self, nonce: str, content: bytes) -> None:
        try:
            persistently(lambda: self._link.reply(nonce, content))
        except Rejected as error:
            logger.warning("The server did not accept a reply: %s", error)


def join(joined: Joined, link: Link) -> Participant:
    """Take part in a run until it is over, and return the part in it.

    Raises:
        ConfigError: the server does not hear this device, or computes with something else.
    """
    outbox = Outbox(joined.home)
    outbox.write({"purpose": "join", "device": joined.device, "computes": dict(joined.computes)})
    request = {"device": joined.device, "computes": dict(joined.computes)}
    part: Participant | None = None
    while True:
        begin = time.monotonic()
        try:
            values = persistently(lambda: link.poll(request))
        except Rejected as error:
            raise ConfigError(f"The server does not hear this device: {error}") from None
        if values.get("kind") == "refused":
            raise ConfigError(f"The server refuses this device: {str(values.get('reason'))[:1000]}")
        message = message_of(values, joined.device)
        if part is None or part.run != message.run:
            part = Participant(joined, message.run, link, outbox)
        part.take(message)
        if message.kind == "done":
            return part
        if message.kind == "wait":
            # A server holds such a request for a while; one that does not must not keep this device busy.
            time.sleep(max(_PAUSE - (time.monotonic() - begin), 0))


def _largest_group(built: Built) -> int:
    """Return the most bytes that a group of tensors of an order can have.

    A method may send more than the shared part, so every tensor is counted four times, in double precision.
    """
    parts = built.personalization.partition
    values = sum(shape.numel() for part in PARTS for shape in parts.shapes(part).values())
    return 4 * 8 * values + _MAX_HEADER


def _reason_to_send(reason: str) -> str:
    """Return the reason of a failure without text of the task's own, which is logged here."""
    if _OWN_REASONS.fullmatch(reason):
        return reason
    logger.warning("The visit failed: %s", reason)
    return "The device could not do its work; its own log says why."


def _event(order: Order, answer: Reply | Failure) -> dict[str, Any]:
    """Return what has happened in a visit, as JSON values."""
    values = {"stage": order.stage.value, "round": order.round, "work": type(order.work).__name__.lower()}
    if isinstance(answer, Failure):
        return {**values, "failed": answer.reason}
    return {**values, "metrics": {split: dict(measures) for split, measures in answer.metrics.items()}}
