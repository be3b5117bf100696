"""A round: orders out, replies into the exact mean as they arrive, one step of the server."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from partita.params import Aggregation, Params, WeightedMean, size_in_bytes
from partita.protocol import DeviceId, Executor, Failure, Measures, Order, Reply
from partita.server.optimizers import ServerOptimizer


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
    replies: dict[DeviceId, Reply] = field(default_factory=dict)
    """Without their changes, which are in the mean already."""
    failed: dict[DeviceId, str] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def heard(self) -> list[DeviceId]:
        """The devices that replied, in the order in which they were asked."""
        return [device for device in self.asked if device in self.replies]

    @property
    def loss(self) -> float | None:
        """The weighted mean of the losses of all training steps; the same in any order of replies."""
        measured = [(r.weight, r.metrics["train"].get("loss")) for r in self.replies.values()]
        losses = [(weight, loss) for weight, loss in measured if isinstance(loss, float)]
        total = sum(weight for weight, _ in losses)
        return math.fsum(weight * loss for weight, loss in losses) / total if total else None

    def metrics(self) -> list[tuple[DeviceId, Mapping[str, Measures]]]:
        """Return what each device measured, in the order in which they were asked."""
        return [(device, self.replies[device].metrics) for device in self.heard]


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server's step after a round."""

    optimizer: ServerOptimizer
    buffers: frozenset[str] = frozenset()
    """Shared tensors without a gradient: the optimizer leaves them out, and their mean change is added."""
    sent: Mapping[str, Aggregation] = field(default_factory=dict)
    """Tensors that the method sends besides the shared part, each with its rule of aggregation."""
    devices: int = 1
    """The number of all devices, in the cohort or not."""

    def begin(self, shared: Params) -> State:
        """Return the state before the first round."""
        return State(shared=shared, optimizer=self.optimizer.init(self._optimized(shared)))

    def step(self, state: State, change: Params, *, heard: int = 1) -> State:
        """Return the state after a mean change, over the devices heard, of the shared part."""
        moved, kept = self.optimizer.step(
            self._optimized(state.shared), self._optimized(change), state.optimizer
        )
        taken = {
            name: tensor.add(change[name], alpha=self.sent[name](heard, self.devices))
            if name in self.sent
            else _plus(tensor, change[name])
            for name, tensor in state.shared.items()
            if name not in moved
        }
        shared = {name: (moved if name in moved else taken)[name] for name in state.shared}
        return State(shared=shared, optimizer=kept, steps=state.steps + 1)

    def _optimized(self, params: Params) -> dict[str, Tensor]:
        return {
            name: tensor
            for name, tensor in params.items()
            if tensor.is_floating_point() and name not in self.buffers and name not in self.sent
        }


def ask(orders: Sequence[Order], executor: Executor, mean: WeightedMean | None = None) -> Outcome:
    """Send orders and return the replies; changes go into `mean`, and without it there must be none.

    A change that cannot be added (not finite, too large, the wrong names) is a failure of its device.
    """
    outcome = Outcome(asked=[order.device for order in orders])
    outcome.bytes_down = sum(size_in_bytes(order.shared) for order in orders)
    for answer in executor.ask(orders):
        if isinstance(answer, Failure):
            outcome.failed[answer.device] = answer.reason
            continue
        try:
            _count(answer, mean)
        except ValueError as error:
            outcome.failed[answer.device] = str(error)
            continue
        outcome.bytes_up += size_in_bytes(answer.change or {})
        outcome.replies[answer.device] = replace(answer, change=None)
    return outcome


def _count(reply: Reply, mean: WeightedMean | None) -> None:
    if mean is None:
        if reply.change is not None:
            raise ValueError("The reply carries tensors, and none were asked for.")
    elif reply.change is None:
        raise ValueError("The reply to an update carries no change.")
    else:
        mean.add(reply.device, reply.change, reply.weight)


def _plus(tensor: Tensor, change: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor + change
    return (tensor.long() + change).to(tensor.dtype)
