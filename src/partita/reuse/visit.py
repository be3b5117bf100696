"""One visit, which computes the layers before the first trained parameter only once.

A visit owns its batches and its loss. Its batches remember the positions of their examples, and while the
loss of such a batch is computed, the modules of the stage's plan answer from what is kept for these
positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from torch import Tensor, nn

from partita.data.examples import Batch, Shuffled
from partita.partition import Part, Partition, Personalization
from partita.protocol import DeviceId
from partita.reuse.call import Call
from partita.reuse.kept import Kept
from partita.reuse.lazy import realized
from partita.reuse.plan import NOTHING, Moving, Plan, replaced
from partita.reuse.still import Forward, Scope
from partita.reuse.values import MIN_ROWS, Values
from partita.tasks.task import LossFn

MAX_VISIT_BYTES = 1_000_000_000
"""A visit that would keep more computes everything."""


@dataclass(frozen=True)
class Visited:
    """The device of a visit, the model, and how it is trained."""

    device: DeviceId
    model: nn.Module
    personalization: Personalization
    frozen: str
    """The digest of the frozen part."""
    batch_size: int
    size: int
    """The number of training examples."""
    steps: Mapping[Part, int]
    """The number of steps on each part."""

    @property
    def partition(self) -> Partition:
        """How the model is split."""
        return self.personalization.partition

    def has_several_passes(self, moving: Moving) -> bool:
        """Return whether a phase in which some parts move goes over the examples more than once."""
        return max(self.steps.get(part, 0) for part in moving) > -(-self.size // self.batch_size)


@dataclass
class Reusing:
    """One visit."""

    visited: Visited
    plans: Mapping[Moving, Plan]
    kept: Kept
    _scope: Scope = field(default_factory=Scope)
    _batch: tuple[Batch, Tensor] | None = None
    _moving: Moving | None = None
    _plan: Plan | None = None
    _refused: set[str] = field(default_factory=set)
    _patches: ExitStack = field(default_factory=ExitStack)
    _forwards: Sequence[Forward] = ()

    def __post_init__(self) -> None:
        partition = self.visited.partition
        parts = partition.of(self.visited.model)
        trained: tuple[Part, ...] = ("personal", "shared")
        self._first: dict[Part, Tensor] = {
            part: getattr(parts, part)[names[0]] for part in trained if (names := partition.trained(part))
        }
        self._kind = next(iter(self._first.values())).device.type

    def batches(self, shuffled: Shuffled) -> "_Remembered":
        """Return the same batches, remembered."""
        return _Remembered(self, shuffled)

    def loss(self, loss: LossFn) -> LossFn:
        """Return the same loss, with modules put off where the plan says so."""

        def reusing(model: nn.Module, batch: Batch) -> Tensor:
            positions = self._positions_of(model, batch)
            if positions is None:
                return loss(model, batch)
            self._enter_phase()
            if self._plan is None:
                return loss(model, batch)
            call = Call(Values(positions, self.kept, self._kind), self._plan.shapes, self._refused)
            self._scope.call = call
            try:
                value = realized(loss(model, batch))
            finally:
                self._scope.call = None
            call.close()
            return value

        return reusing

    def remember(self, batch: Batch, positions: Tensor) -> None:
        """Remember the batch that is used next."""
        self._batch = batch, positions

    def begin(self) -> None:
        """End the phase, after which any tensor may have changed."""
        self._moving = None

    def end(self) -> None:
        """Give the model's modules back their own `forward`."""
        self._patches.close()
        self._plan, self._forwards = None, ()

    def check(self) -> None:
        """Raise `Deviated` where something that was put off has changed without a mark."""
        for forward in self._forwards:
            forward.check()

    def _positions_of(self, model: nn.Module, batch: Batch) -> Tensor | None:
        if self._batch is None or batch is not self._batch[0] or model is not self.visited.model:
            return None
        return self._batch[1] if len(self._batch[1]) >= MIN_ROWS else None

    def _enter_phase(self) -> None:
        """Look which parts move now, and put off the modules of the plan for them, in place."""
        moving: Moving = frozenset(part for part, tensor in self._first.items() if tensor.requires_grad)
        if moving == self._moving:
            return
        self.check()
        self.end()
        self.kept.forget()
        self._moving = moving
        plan = self.plans.get(moving, NOTHING)
        if plan.bytes_per_example * self.kept.size > MAX_VISIT_BYTES:
            return
        several = self.visited.has_several_passes(moving)
        if forwards := plan.forwards(self.visited.model, self._scope, several=several):
            self._plan, self._forwards = plan, list(forwards.values())
            self._refused |= plan.refused
            self._patches.enter_context(replaced(forwards))


@dataclass(frozen=True)
class _Remembered:
    """The batches of a visit; each iteration over them begins a new phase."""

    visit: Reusing
    shuffled: Shuffled

    def __iter__(self) -> Iterator[Batch]:
        self.visit.begin()
        for positions, batch in self.shuffled.with_positions():
            self.visit.remember(batch, positions)
            yield batch


class Plainly:
    """A visit that computes everything."""

    def batches(self, shuffled: Shuffled) -> Shuffled:
        """Return the same batches."""
        return shuffled

    def loss(self, loss: LossFn) -> LossFn:
        """Return the same loss."""
        return loss
