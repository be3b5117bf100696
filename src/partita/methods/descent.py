"""The one local loop: gradient steps on some parts of a model while the other parts are fixed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from torch import Tensor, nn

from partita.methods.sgd import SGD
from partita.params import Params
from partita.partition import Partition, uses_batch_statistics
from partita.partition.selection import Part

Batch = Any
LossFn = Callable[[nn.Module, Batch], Tensor]


Phases = Sequence[Sequence[Part]]
"""The parts that move together in each phase of an update, one phase after the other."""


class Optimizer(Protocol):
    """Moves parameters along their gradients, as the optimizers of torch do."""

    def zero_grad(self) -> None:
        """Clear the gradients."""
        ...

    def step(self) -> Any:
        """Move the parameters."""
        ...


OptimizerFn = Callable[[list[dict[str, Any]]], Optimizer]
"""Returns an optimizer for parameter groups, each with `params` and `lr`."""


class Diverged(Exception):
    """The loss is no longer a finite number."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Gradient steps on one part of the model."""

    count: int
    """The number of steps."""
    lr: float
    """The learning rate."""
    max_grad_norm: float = 0.0
    """Maximum norm of the gradient of all parameters that move in a step; 0 does not clip."""
    optimizer: OptimizerFn = SGD
    """Plain SGD: a parameter p with gradient g becomes `p.add_(g, alpha=-lr)`."""
    one_example_every: int = 0
    """In whole passes whose last batch has one example, the batches of a pass; otherwise 0."""

    def draw(self, batches: Iterable[Batch], model: nn.Module) -> Iterator[Batch]:
        """Return a batch for each step, from a new pass.

        A batch of one example is left out, and its step with it, where BatchNorm uses batch statistics.
        """
        is_short = self.one_example_every and uses_batch_statistics(model)
        return islice(batches, self.count - (self.count // self.one_example_every if is_short else 0))


class LocalUpdate(Protocol):
    """A device's training in a round; changes the model in place."""

    def __call__(
        self,
        model: nn.Module,
        partition: Partition,
        batches: Iterable[Batch],
        loss: LossFn,
    ) -> list[float]:
        """Train the model and return the loss of every step.

        Each iteration over `batches` is endless and begins a new pass over the device's examples.
        """
        ...


def descend(
    moves: Mapping[Part, Steps],
    model: nn.Module,
    partition: Partition,
    batches: Iterable[Batch],
    loss: LossFn,
) -> list[float]:
    """Take gradient steps on the parts in `moves`, all at once and in place; return each step's loss.

    The steps begin a new pass over the device's examples. Each part has its own learning rate. One optimizer
    takes the steps of all parts, and clipping is by one norm over all of them, so everything else must be the
    same for all parts.

    Raises:
        ValueError: the parts differ in their count, their optimizer or their clipping.
        Diverged: the loss became infinite or NaN.
    """
    steps = _common(moves)
    parts = partition.let_move(model, *moves)
    if not any(getattr(parts, part) for part in moves):
        return []
    groups = [_group(getattr(parts, part), own.lr) for part, own in moves.items()]
    moving = [tensor for group in groups for tensor in group["params"]]
    optimizer = steps.optimizer([group for group in groups if group["params"]]) if moving else None
    losses: list[float] = []
    for batch in steps.draw(batches, model):
        value = loss(model, batch)
        losses.append(value.item())
        if not math.isfinite(losses[-1]):
            raise Diverged(f"The loss became {losses[-1]} in step {len(losses)}.")
        if optimizer and value.requires_grad:
            _step(optimizer, moving, value, steps.max_grad_norm)
    for tensor in moving:
        tensor.grad = None  # Not needed any more, and as large as what has moved.
    return losses


def _common(moves: Mapping[Part, Steps]) -> Steps:
    """Return the steps of any part, once it is known that parts differ in nothing but their learning rate."""
    if not moves:
        raise ValueError("`descend` needs at least one part to move.")
    (first, steps), *others = moves.items()
    for part, other in others:
        for name in ("count", "optimizer", "max_grad_norm"):
            one, two = getattr(steps, name), getattr(other, name)
            if one != two:
                raise ValueError(
                    f"Parts that move together must have the same `{name}`, got {one!r} for the {first} part "
                    f"and {two!r} for the {part} part."
                )
    return steps


def _group(part: Params, lr: float) -> dict[str, Any]:
    return {"params": [tensor for tensor in part.values() if tensor.requires_grad], "lr": lr}


def _step(optimizer: Optimizer, moving: list[Tensor], loss: Tensor, max_grad_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    if max_grad_norm:
        nn.utils.clip_grad_norm_(moving, max_grad_norm)
    optimizer.step()
