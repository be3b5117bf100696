"""The server's messages as a device takes them: every value is checked, since a server may be anybody's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from partita.errors import ConfigError
from partita.executors.codec import order_of
from partita.params import Params
from partita.protocol import DeviceId, Evaluate, Order, Pace, Stage, Start, Update

_LABEL = re.compile(f"({Stage.PRETRAINED}|{Stage.PERSONALIZED}|{Stage.FINETUNED})-[0-9]{{1,9}}")
"""The label of a round: a file name is made of it."""
_RUN, _DIGEST, _NONCE = re.compile("[0-9a-f]{16,64}"), re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{32}")
_GROUPS = ("shared", "personal", "pretrained")
_MAX_ROUND = 10**9
_MAX_BYTES = 2**40
_MAX_RESTORED = 16
"""The most rounds that devices can have gone back to: each stage stops early once."""


class BadMessage(ConfigError):
    """A message of the server that this version does not know."""


@dataclass(frozen=True)
class Group:
    """A group of tensors that an order needs: its digest and its size."""

    digest: str
    bytes: int


@dataclass(frozen=True)
class Message:
    """The server's answer to a device that asks."""

    kind: Literal["order", "wait", "done"]
    run: str
    computes: Mapping[str, str]
    counted: str | None
    """The label of the last round in which the device was counted."""
    restored: tuple[str, ...]
    """The labels of rounds that devices have gone back to."""
    nonce: str = ""
    cohort: int = 0
    order: Mapping[str, Any] | None = None
    groups: Mapping[str, Group] | None = None

    def order_with(self, tensors: Mapping[str, Params]) -> Order:
        """Return the order with its tensors."""
        assert self.order is not None
        start = Start(
            digest="",
            personal=tensors.get("personal"),
            frozen="",
            pretrained=tensors.get("pretrained"),
        )
        return order_of(self.order, tensors["shared"], start)


def message_of(values: Mapping[str, Any], device: DeviceId) -> Message:
    """Return the message in JSON values.

    Raises:
        BadMessage: a value is not as it must be, or the order is another device's.
    """
    try:
        return _message(values, device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(
            f"The server's message cannot be understood: {type(error).__name__}: {error}"
        ) from None


def _message(values: Mapping[str, Any], device: DeviceId) -> Message:
    kind = values["kind"]
    if kind not in ("order", "wait", "done"):
        raise ValueError(f"its kind is {str(kind)[:40]!r}")
    counted, computes = values["counted"], dict(values["computes"])
    if len(values["restored"]) > _MAX_RESTORED:
        raise ValueError(f"it names {len(values['restored'])} rounds to go back to")
    common = {
        "kind": kind,
        "run": _matching(_RUN, values["run"]),
        "computes": {str(name): str(digest) for name, digest in computes.items()},
        "counted": None if counted is None else _matching(_LABEL, counted),
        "restored": tuple(_matching(_LABEL, label) for label in values["restored"]),
    }
    if kind != "order":
        return Message(**common)
    groups = {name: _group(values["tensors"][name]) for name in _GROUPS if name in values["tensors"]}
    if "shared" not in groups:
        raise ValueError("an order has no shared part")
    order = values["order"]
    _check_order(order, device)
    return Message(
        **common,
        nonce=_matching(_NONCE, values["nonce"]),
        cohort=_count(values["cohort"], _MAX_ROUND),
        order=order,
        groups=groups,
    )


def _check_order(values: Mapping[str, Any], device: DeviceId) -> None:
    """Raise unless the values of an order have the right types, and no others are among them."""
    if values["start"].keys() != {"digest", "frozen"}:
        raise ValueError("the start of an order has other values than its digests")
    order = order_of(values, {}, Start(digest="", personal=None, frozen=""))
    if order.device != device:
        raise ValueError("the order is another device's")
    _matching(_LABEL, order.label)
    _count(order.round, _MAX_ROUND)
    for label in (order.counted, order.keep):
        if label is not None:
            _matching(_LABEL, label)
    for digest in (order.start.digest, order.start.frozen):
        _matching(_DIGEST, digest)
    work = order.work
    if isinstance(work, Evaluate):
        if work.model not in ("global", "personal") or not all(isinstance(name, str) for name in work.splits):
            raise ValueError("an evaluation has no model or no splits")
        return
    for pace in (work.personal, work.shared) if isinstance(work, Update) else (work.personal,):
        _check_pace(pace)


def _check_pace(pace: Pace) -> None:
    if type(pace.lr) not in (int, float):
        raise ValueError("a learning rate is no number")
    for count in (pace.epochs, pace.steps):
        _count(count, _MAX_ROUND)


def _group(values: Mapping[str, Any]) -> Group:
    return Group(_matching(_DIGEST, values["digest"]), _count(values["bytes"], _MAX_BYTES))


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} is not of the form {pattern.pattern}")
    return value


def _count(value: Any, largest: int) -> int:
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{str(value)[:40]!r} is no whole number up to {largest}")
    return value
