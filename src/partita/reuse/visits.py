"""Computing only once, in visits, what comes before the first parameter that moves.

A visit owns its batches and its loss. Its batches remember the positions of their examples, and while the
loss of such a batch is computed, the modules of the stage's plan answer from what is kept for these
positions. What precedes the first parameter that is not frozen is kept for later visits of the device too.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from partita.data.examples import Batch, Examples, Shuffled
from partita.errors import CannotDo
from partita.methods.method import Finetuning, Method
from partita.partition import Part, Partition, Personalization
from partita.protocol import DeviceId
from partita.reuse.call import Call
from partita.reuse.kept import Kept
from partita.reuse.kept_rows import KeptRows
from partita.reuse.lazy import realized
from partita.reuse.plan import MOVING, Moving, Plan, Settling, replaced
from partita.reuse.still import Scope
from partita.reuse.values import MIN_ROWS, Values
from partita.tasks.task import LossFn, Task

logger = logging.getLogger(__name__)

_TRIED_DEVICES = 20
"""Devices looked at for one with enough examples for trial runs."""
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
        """End the phase: what moved may have been anything."""
        self._moving = None

    def end(self) -> None:
        """Give the model's modules back their own `forward`."""
        self._patches.close()
        self._plan = None

    def _positions_of(self, model: nn.Module, batch: Batch) -> Tensor | None:
        if self._batch is None or batch is not self._batch[0] or model is not self.visited.model:
            return None
        return self._batch[1] if len(self._batch[1]) >= MIN_ROWS else None

    def _enter_phase(self) -> None:
        """Look which parts move now, and put off the modules of the plan for them, in place."""
        moving: Moving = frozenset(part for part, tensor in self._first.items() if tensor.requires_grad)
        if moving == self._moving:
            return
        self.end()
        self.kept.forget()
        self._moving = moving
        plan = self.plans.get(moving, _NOTHING)
        if plan.bytes_per_example * self.kept.size > MAX_VISIT_BYTES:
            return
        several = self.visited.has_several_passes(moving)
        if forwards := plan.forwards(self.visited.model, self._scope, several=several):
            self._plan = plan
            self._refused |= plan.refused
            self._patches.enter_context(replaced(forwards))


_NOTHING = Plan()


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


class Reuses:
    """Settles and carries out, for all visits of a process, the reuse of what was computed.

    Args:
        task: data, model, loss and metrics.
        examples: returns the training examples of a device.
        seed: the run's seed.
        is_off: whether everything is computed.
        folder: the folder for rows that are kept between visits; without it they are kept in memory alone.
    """

    def __init__(
        self,
        task: Task,
        examples: Callable[[DeviceId], Examples],
        *,
        seed: int,
        is_off: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.task = task
        self.seed = seed
        self.is_off = is_off
        self._examples = examples
        self._plans: dict[tuple[int, int], dict[Moving, Plan]] = {}
        self._rows = KeptRows(folder)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Compute everything in this block."""
        before, self.is_off = self.is_off, True
        try:
            yield
        finally:
            self.is_off = before

    def is_settled(self, own: Personalization, settings: Method | Finetuning) -> bool:
        """Return whether it is known what visits of a model compute only once."""
        settled = self._plans.get((id(own), settings.batch_size), {})
        return settled.keys() >= set(wanted_plans(own.partition, settings))

    def settle(self, model: nn.Module, own: Personalization, settings: Method | Finetuning) -> None:
        """Settle it, in place, on a model that has its first values."""
        partition = own.partition
        examples = self._probed()
        plans = self._plans.setdefault((id(own), settings.batch_size), {})
        wanted = wanted_plans(partition, settings)
        if examples is None:
            plans.update(dict.fromkeys(wanted, _NOTHING))
        else:
            settling = Settling(
                model, partition, self.task.loss, examples, settings.batch_size, seed=self.seed
            )
            plans.update({moving: settling.plan(moving) for moving in wanted if moving not in plans})
        for moving, plan in plans.items():
            what = f"reuse what precedes {plan.begins}" if plan.modules else f"reuse nothing: {plan.reason}"
            logger.debug("While %s moves, visits %s.", " and ".join(sorted(moving)), what)

    @contextmanager
    def visit(self, visited: Visited) -> Iterator["Reusing | Plainly"]:
        """Return what wraps the batches and the loss of a visit."""
        plans = self._plans.get((id(visited.personalization), visited.batch_size))
        if (
            not plans
            or not any(plan.modules for plan in plans.values())
            or self.is_off
            or min(visited.size, visited.batch_size) < MIN_ROWS
        ):
            yield Plainly()
            return
        kept = self._rows.take(visited.frozen, visited.device, visited.size)
        reusing = Reusing(visited, plans, kept)
        try:
            yield reusing
        finally:
            reusing.end()
        self._rows.put(visited.frozen, visited.device, kept)

    def _probed(self) -> Examples | None:
        """Return the training examples of the first device that has enough for trial runs."""
        for device in self.task.devices.ids[:_TRIED_DEVICES]:
            with suppress(CannotDo):
                examples = self._examples(device)
                if len(examples) > MIN_ROWS:
                    return examples
        return None


def wanted_plans(partition: Partition, settings: Method | Finetuning) -> list[Moving]:
    """Return the sets of moving parts for which something may be computed twice otherwise."""
    if settings.batch_size < MIN_ROWS:
        return []
    if isinstance(settings, Finetuning):
        steps = {"personal": settings.epochs}
    else:
        steps = {
            "personal": settings.personal_steps or settings.personal_epochs,
            "shared": settings.shared_steps or settings.shared_epochs,
        }
    least = 1 if partition.names("frozen") else 2
    return [
        moving
        for moving in MOVING
        if moving <= steps.keys()
        and any(partition.trained(part) for part in moving)
        and max(steps[part] for part in moving) >= least
    ]


class Plainly:
    """A visit that computes everything."""

    def batches(self, shuffled: Shuffled) -> Shuffled:
        """Return the same batches."""
        return shuffled

    def loss(self, loss: LossFn) -> LossFn:
        """Return the same loss."""
        return loss
