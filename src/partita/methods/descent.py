"""The one local loop: gradient steps on some parts of a model while the others are held still."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from partita.methods.sgd import SGD
from partita.params import Params
from partita.partition import Partition
from partita.partition.selection import Part

Batch = Any
LossFn = Callable[[nn.Module, Batch], Tensor]


class Optimizer(Protocol):
    """What moves parameters along their gradients; torch's optimizers do."""

    def zero_grad(self) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> Any:
        """Move the parameters."""
        ...


OptimizerFn = Callable[[list[dict[str, Any]]], Optimizer]
"""From groups of parameters (`params`), each with its `lr`, to an optimizer."""


class Diverged(Exception):
    """The loss is no longer a finite number."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Gradient steps on one part of the model."""

    count: int
    """How many."""
    lr: float
    """The learning rate."""
    max_grad_norm: float = 0.0
    """The most that the norm of all that moves in a step may be; 0 does not clip."""
    optimizer: OptimizerFn = SGD
    """Plain SGD: a parameter p with gradient g becomes `p.add_(g, alpha=-lr)`."""


class LocalUpdate(Protocol):
    """What a device does with its model in a round; changes the model in place."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterator[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model and return the loss of every step."""
        ...


def descend(
    moves: Mapping[Part, Steps],
    model: nn.Module,
    partition: Partition,
    batches: Iterator[Batch],
    loss: LossFn,
) -> list[float]:
    """Take gradient steps on the parts in `moves`, all at once and in place; return each step's loss.

    Parts that move together take as many steps, and are clipped by one norm over all of them.

    Raises:
        Diverged: the loss became infinite or NaN.
    """
    steps = next(iter(moves.values()))
    parts = partition.let_move(model, *moves)
    if not any(getattr(parts, part) for part in moves):
        return []
    groups = [_group(getattr(parts, part), own.lr) for part, own in moves.items()]
    moving = [tensor for group in groups for tensor in group["params"]]
    optimizer = steps.optimizer([group for group in groups if group["params"]]) if moving else None
    losses: list[float] = []
    for _ in range(steps.count):
        value = loss(model, next(batches))
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            raise Diverged(f"The loss became {losses[-1]} in step {len(losses)}.")
        if optimizer and value.requires_grad:
            _step(optimizer, moving, value, steps.max_grad_norm)
    return losses


def _group(part: Params, lr: float) -> dict[str, Any]:
    return {"params": [tensor for tensor in part.values() if tensor.requires_grad], "lr": lr}


def _step(optimizer: Optimizer, moving: list[Tensor], loss: Tensor, max_grad_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    if max_grad_norm:
        nn.utils.clip_grad_norm_(moving, max_grad_norm)
    optimizer.step()
