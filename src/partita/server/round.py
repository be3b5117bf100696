"""A round: orders out, replies into the exact mean as they arrive, one step of the server."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from partita.params import Aggregation, Params, change_in_bytes, size_in_bytes
from partita.protocol import DeviceId, Executor, Failure, Measures, Order, Reply, Tally
from partita.server.aggregation import Aggregator
from partita.server.optimizers import ServerOptimizer

_NO_CHANGE = "The reply to an update has no change."


@dataclass(frozen=True, kw_only=True)
class State:
    """The server's state after some rounds."""

    shared: Params
    """u, the shared part."""
    optimizer: Params
    """The server optimizer's state."""
    steps: int = 0
    """Steps taken since the beginning of the stage."""


@dataclass(kw_only=True)
class Outcome:
    """The replies of a round, filled in as they arrive."""

    asked: Sequence[DeviceId]
    """The devices that orders were sent to."""
    replies: dict[DeviceId, Reply] = field(default_factory=dict)
    """The replies, without their changes, which are in the mean already."""
    failed: dict[DeviceId, str] = field(default_factory=dict)
    """The reason of each device that failed."""
    left_out: list[DeviceId] = field(default_factory=list)
    """The devices that replied but were not needed, in the order of `asked`."""
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def heard(self) -> list[DeviceId]:
        """The devices that replied and count, in the order of `asked`."""
        return [device for device in self.asked if device in self.replies]

    def mean(self, name: str) -> float | None:
        """Return the weighted mean of a measure of training, such as `loss`; the same in any order."""
        measured = [(r.weight, r.metrics.get("train", {}).get(name)) for r in self.replies.values()]
        values = [(weight, value) for weight, value in measured if isinstance(value, float)]
        total = sum(weight for weight, _ in values)
        return math.fsum(weight * value for weight, value in values) / total if total else None

    def metrics(self) -> list[tuple[DeviceId, Mapping[str, Measures]]]:
        """Return the metrics of each device that replied, in the order of `asked`."""
        return [(device, self.replies[device].metrics) for device in self.heard]


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server's step at the end of a round."""

    optimizer: ServerOptimizer
    buffers: frozenset[str] = frozenset()
    """Shared tensors without a gradient: their mean change is added without the optimizer."""
    sent: Mapping[str, Aggregation] = field(default_factory=dict)
    """Tensors that the method sends besides the shared part, each with its rule of aggregation."""
    devices: int = 1
    """The number of all devices, in the cohort or not."""

    def begin(self, shared: Params) -> State:
        """Return the state before the first round."""
        return State(shared=shared, optimizer=self.optimizer.init(self._optimized(shared)))

    def step(self, state: State, change: Params, *, heard: int = 1) -> State:
        """Return the state after a step along a mean change over the devices that replied.

        Args:
            state: the state before.
            change: the mean change of every tensor that was sent.
            heard: the number of devices that replied.
        """
        optimized, kept = self.optimizer.step(
            self._optimized(state.shared), self._optimized(change), state.optimizer
        )
        shared: dict[str, Tensor] = {}
        for name, tensor in state.shared.items():
            if name in optimized:
                shared[name] = optimized[name]
            elif name in self.sent:
                shared[name] = tensor.add(change[name], alpha=self.sent[name](heard, self.devices))
            else:
                shared[name] = _plus(tensor, change[name])
        return State(shared=shared, optimizer=kept, steps=state.steps + 1)

    def _optimized(self, params: Params) -> dict[str, Tensor]:
        return {
            name: tensor
            for name, tensor in params.items()
            if tensor.is_floating_point() and name not in self.buffers and name not in self.sent
        }


def ask(
    orders: Sequence[Order],
    executor: Executor,
    mean: Aggregator | None = None,
    *,
    wanted: int | None = None,
) -> Outcome:
    """Send orders and return the replies; changes go into `mean`, and without it there must be none.

    A reply that cannot be used is a failure of its device: a change that is not finite, too large or of other
    names, shapes or types than the shared part, a weight that is not a positive whole number, or metrics that
    are not finite. So is a device without an answer.

    Args:
        orders: the orders; those after the first `wanted` ask for single changes.
        executor: carries them out.
        mean: combines the changes, in place.
        wanted: the number of replies that count, the first ones in the order of the orders; by default all.

    Raises:
        ValueError: the executor's own sums do not fit, or its answers do not match the orders.
    """
    answers = _Answers(orders, mean, len(orders) if wanted is None else wanted)
    for answer in executor.ask(orders):
        answers.take(answer)
    return answers.outcome()


class _Answers:
    """The answers to orders, taken in any order of arrival; see `ask`."""

    def __init__(self, orders: Sequence[Order], mean: Aggregator | None, wanted: int) -> None:
        self._outcome = Outcome(asked=[order.device for order in orders], bytes_down=_bytes_down(orders))
        self._mean = mean
        self._wanted = wanted
        self._unanswered = set(self._outcome.asked)
        self._single = {order.device for order in orders if order.single}
        # A device among the first ones counts if it succeeds; whether a further one does is known at the end.
        self._further: dict[DeviceId, Reply | None] = dict.fromkeys(self._outcome.asked[wanted:])
        self._counted: list[DeviceId] = []

    def take(self, answer: Reply | Tally | Failure) -> None:
        """Take one answer, in place."""
        if isinstance(answer, Tally):
            self._counted += self._merge(answer)
            return
        if answer.device not in self._unanswered:
            raise ValueError(f"{answer.device!r} has answered twice, or without being asked.")
        self._unanswered.remove(answer.device)
        if isinstance(answer, Failure):
            self._outcome.failed[answer.device] = answer.reason
        elif answer.device in self._further:
            self._further[answer.device] = answer
        else:
            self._count(answer)

    def outcome(self) -> Outcome:
        """Return the outcome, when everything has been taken."""
        outcome, mean = self._outcome, self._mean
        if mean is not None:
            _check_counted(outcome, self._counted)
        for reply in filter(None, self._further.values()):
            if len(outcome.replies) == self._wanted:
                outcome.left_out.append(reply.device)
            elif reply.change is None:
                outcome.failed[reply.device] = _NO_CHANGE
            else:
                self._count(reply)
        if mean is not None:
            replies = len(outcome.replies) + len(outcome.left_out)
            outcome.bytes_up = replies * change_in_bytes(mean.like)
        outcome.failed = _failed(outcome)
        return outcome

    def _count(self, reply: Reply) -> None:
        try:
            self._counted += _count(reply, self._mean)
        except ValueError as error:
            self._outcome.failed[reply.device] = str(error)
        else:
            self._outcome.replies[reply.device] = (
                reply if reply.change is None else replace(reply, change=None)
            )

    def _merge(self, tally: Tally) -> Sequence[DeviceId]:
        """Add a tally to the mean, in place, and return its devices."""
        if self._mean is None:
            raise ValueError("The executor has added up changes, but the orders did not ask for any.")
        if not self._single.isdisjoint(tally.devices):
            raise ValueError("The executor has added up changes that the orders ask for singly.")
        self._mean.merge(tally.totals)
        return tally.devices


def _failed(outcome: Outcome) -> dict[DeviceId, str]:
    """Return why each device failed, in the order of `asked`; a device without an answer failed too."""
    others = {*outcome.replies, *outcome.left_out}
    reasons = {device: outcome.failed.get(device, "There was no answer.") for device in outcome.asked}
    return {device: reason for device, reason in reasons.items() if device not in others}


def _bytes_down(orders: Sequence[Order]) -> int:
    """Return the size of everything sent; most orders have the same tensors, which are measured once."""
    sent = Counter(id(order.shared) for order in orders)
    tensors = {id(order.shared): order.shared for order in orders}
    return sum(count * size_in_bytes(tensors[key]) for key, count in sent.items())


def _count(reply: Reply, mean: Aggregator | None) -> list[DeviceId]:
    """Add the change of a reply to the mean, in place, and return its device; none where it has no change.

    Raises:
        ValueError: the reply cannot be used.
    """
    _check_metrics(reply)
    if reply.change is None:
        return []
    if mean is None:
        raise ValueError("The reply has tensors, but the order did not ask for any.")
    _check_types(reply.change, mean.like)
    mean.add(reply.device, reply.change, reply.weight)
    return [reply.device]


def _check_metrics(reply: Reply) -> None:
    for split, measures in reply.metrics.items():
        for name, value in measures.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"`{name}` of the split `{split}` must be finite, got {value}.")


def _check_types(change: Params, like: Params) -> None:
    """Raise unless floating-point tensors have a floating-point change, and integer ones an int64 change."""
    for name, tensor in change.items():
        if name in like:
            is_right = tensor.is_floating_point() if like[name].is_floating_point() else _is_int64(tensor)
            if not is_right:
                wanted = "a floating-point type" if like[name].is_floating_point() else "int64"
                raise ValueError(f"The change of `{name}` must have {wanted}, got {tensor.dtype}.")


def _is_int64(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64


def _check_counted(outcome: Outcome, counted: Sequence[DeviceId]) -> None:
    """Count a reply to an update as a failure, in place, where neither it nor a tally has a change."""
    added = set(counted)
    if len(added) < len(counted) or not added <= outcome.replies.keys():
        raise ValueError("The changes that the executor has added up are not those of the replies.")
    for device in [device for device in outcome.replies if device not in added]:
        del outcome.replies[device]
        outcome.failed[device] = _NO_CHANGE


def _plus(tensor: Tensor, change: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor + change
    return (tensor.long() + change).to(tensor.dtype)
