"""Settling what a stage's visits compute only once, from model, partition and task.

For each set of parts that can move, a few runs of the loss on examples of the task's first device find the
largest modules in which nothing moves and that can be put off. All processes come to the same plan: nothing
in it depends on time, on free memory or on the device that is visited first.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from partita.data.examples import Batch, Examples
from partita.partition import Partition
from partita.partition.tensors import scratch_of
from partita.protocol import derive_seed
from partita.reuse.call import Call
from partita.reuse.kept import Kept
from partita.reuse.lazy import Deviated, Lazy, realized
from partita.reuse.plan import Moving, Plan, Still, replaced
from partita.reuse.still import Scope, candidates
from partita.reuse.trial import Trial, same_rows
from partita.reuse.values import MIN_ROWS, Values
from partita.tasks.build import one_thread, seeded
from partita.tasks.task import LossFn

MIN_OPERATIONS = 40_000_000
"""Floating-point operations before the cut in a step, below which bookkeeping costs more than it saves."""
_SIZES = (4, 7, 13)
"""Sizes of batches, besides the largest, in which rows are computed on trial."""
_LARGE = 32
"""A batch of this size is tried even where the device has fewer examples."""


@dataclass(frozen=True)
class Settling:
    """Settles the plans of one model."""

    model: nn.Module
    partition: Partition
    loss: LossFn
    examples: Examples
    batch_size: int
    """Examples in a step."""
    seed: int
    is_outline: bool = False
    """Whether two examples are enough, for placeholders: then no bits are compared."""
    tried: int = 0
    """Examples in the largest batch on trial, for a description; by default as many as in a large step."""

    def plan(self, moving: Moving) -> Plan:
        """Return the plan for the parts that move; the model is as before afterwards."""
        if not any(self.partition.trained(part) for part in moving):
            return Plan(reason="nothing moves")
        with one_thread(), seeded(derive_seed(self.seed, "reuse")), _unchanged(self.model):
            try:
                self.partition.let_move(self.model, *sorted(moving))
                return self._plan()
            except (Deviated, Exception) as error:
                # A loss that fails on a small batch may work on those of a visit; otherwise it fails there.
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                return Plan(reason=str(error) if isinstance(error, Deviated) else reason)

    def _plan(self) -> Plan:
        refused: set[str] = set()
        while True:
            found = list(candidates(self.model, self._frozen, refused))
            stills = [Still(name, is_frozen) for name, _, is_frozen in found]
            if not stills:
                return Plan(reason="no module before the first parameter that moves can be put off")
            trials = {name: Trial(module, is_watched=True) for name, module, _ in found}
            begins = self._watch(trials)
            bad = {name for name, trial in trials.items() if trial.reason or not _is_used(trial)}
            refused |= bad
            if any(list(trials[name].module.children()) for name in bad):
                continue
            stills = [s for s in stills if s.name not in bad and not trials[s.name].has_gradient]
            operations = sum(trials[still.name].operations for still in _outermost(stills))
            operations //= min(MIN_ROWS, len(self._positions))
            if operations * self._step < MIN_OPERATIONS:
                return Plan(reason="little is computed before the first parameter that moves")
            plan = Plan(stills, operations, 0, begins)
            if self.is_outline:
                return self._outlined(plan)
            if bad := self._unstable({still.name: trials[still.name].module for still in stills}):
                refused |= bad
                continue
            return self._checked(plan)

    @property
    def _frozen(self) -> set[int]:
        """The `id` of every tensor that is the same in all visits."""
        parts = self.partition.of(self.model)
        return set(map(id, (*parts.frozen.values(), *scratch_of(self.model).values())))

    @property
    def _kind(self) -> str:
        return next(self.model.parameters()).device.type

    @property
    def _positions(self) -> Tensor:
        """The positions of a large batch; a device with few examples has them in it several times."""
        known = len(self.examples)
        count = min(self.tried or self._step, self._step)
        return torch.arange(2 if self.is_outline else count) % known

    @property
    def _step(self) -> int:
        """Examples in a large step."""
        return min(self.batch_size, max(len(self.examples), _LARGE))

    def _watch(self, trials: Mapping[str, Trial]) -> str:
        """Run a small batch with all modules watched; return the first called module that has what moves."""
        first: list[str] = []
        owners = {
            name: module
            for name, module in self.model.named_modules()
            if any(p.requires_grad for p in module.parameters(recurse=False))
            and "forward" not in vars(module)
        }
        handles = [
            module.register_forward_pre_hook(lambda _, __, name=name: first.append(name))
            for name, module in owners.items()
        ]
        try:
            self._run(trials, self._positions[:MIN_ROWS])
        finally:
            for handle in handles:
                handle.remove()
        return first[0] if first else ""

    def _unstable(self, modules: Mapping[str, nn.Module]) -> set[str]:
        """Return the modules that compute an example differently in another batch."""
        trials = {name: Trial(module) for name, module in modules.items()}
        everything = self._positions
        self._run(trials, everything)
        reference = {name: trial.calls for name, trial in trials.items()}
        found: set[str] = set()
        for positions in self._small_batches(everything):
            self._run(trials, positions)
            for name, trial in trials.items():
                if same_rows(reference[name], everything, trial.calls, positions):
                    found.add(name)
        return found

    def _small_batches(self, everything: Tensor) -> Iterator[Tensor]:
        """Yield random batches, and two of one example each: there its neighbors cannot go unnoticed."""
        for size in _SIZES[:1] if self.tried else _SIZES:
            yield everything[torch.randperm(len(everything))[:size]]
        for position in everything[:2]:
            yield position.repeat(MIN_ROWS)

    def _run(self, trials: Mapping[str, Trial], positions: Tensor) -> None:
        for trial in trials.values():
            trial.rows, trial.calls = len(positions), []
        with replaced({trial.module: trial for trial in trials.values()}):
            self.loss(self.model, self._batch(positions))

    def _batch(self, positions: Tensor) -> Batch:
        return self.examples.batch_at(positions)

    def _checked(self, plan: Plan) -> Plan:
        """Return the plan if the loss of a batch of kept rows has the bits of the computed one."""
        everything, kept = self._positions, Kept(len(self.examples))
        plain = self._loss_of(everything.flip(0), 2)
        # The first batch shows shapes, the second is computed, the third taken from what is kept.
        batches = [(everything[:MIN_ROWS], None), (everything, kept), (everything.flip(0), kept)]
        value = self._put_off(plan, batches)
        if any(isinstance(value, Lazy) for module in self.model.modules() for value in vars(module).values()):
            return Plan(reason="the model keeps values of a batch")
        if not torch.equal(value, plain):
            return Plan(reason="kept rows have other bits than computed ones")
        return replace(plan, bytes_per_example=kept.bytes_per_example)

    def _outlined(self, plan: Plan) -> Plan:
        kept = Kept(len(self.examples))
        self._put_off(plan, [(self._positions, kept)])
        return replace(plan, bytes_per_example=kept.bytes_per_example)

    def _put_off(self, plan: Plan, batches: Sequence[tuple[Tensor, Kept | None]]) -> Tensor:
        """Compute the losses of batches with modules put off, and return the last."""
        scope = Scope()
        value = torch.zeros(())
        with replaced(plan.forwards(self.model, scope)):
            for number, (positions, kept) in enumerate(batches):
                call = scope.call = Call(Values(positions, kept, self._kind), plan.shapes, plan.refused)
                try:
                    value = realized(self._loss_of(positions, number))
                finally:
                    scope.call = None
                call.close()
        return value

    def _loss_of(self, positions: Tensor, number: int) -> Tensor:
        """Return the loss of a batch, with random numbers of its own."""
        with seeded(derive_seed(self.seed, "reuse", number)):
            return self.loss(self.model, self._batch(positions)).detach()


def _is_used(trial: Trial) -> bool:
    return bool(trial.calls) or trial.has_gradient


def _outermost(stills: Sequence[Still]) -> Iterator[Still]:
    names = {still.name for still in stills}
    for still in stills:
        parts = still.name.split(".")
        if not any(".".join(parts[:end]) in names for end in range(1, len(parts))):
            yield still


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore a model's buffers, attributes and modes after this block; its parameters do not change."""
    tensors = [*model.parameters(), *model.buffers()]
    modes = [(tensor, tensor.requires_grad, tensor.grad) for tensor in tensors]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    attributes = [(own, dict(own)) for m in model.modules() for own in (vars(m), m._buffers)]  # noqa: SLF001
    try:
        yield
    finally:
        for own, before in attributes:
            own.clear()
            own.update(before)
        for buffer, before in values:
            buffer.copy_(before)
        for tensor, needs_gradient, gradient in modes:
            tensor.requires_grad_(needs_gradient)
            tensor.grad = gradient
