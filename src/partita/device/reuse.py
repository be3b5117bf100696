"""Computing only once, in visits, what comes before the first parameter that moves.

A visit owns its batches and its loss. Its batches remember the positions of their examples, and while the loss
of such a batch is computed, the modules of the stage's plan answer from what is kept for these positions.
What precedes the first parameter that is not frozen is kept for later visits of the device too.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from partita.data.examples import Batch, Shuffled
from partita.device.kept import Kept
from partita.device.lazy import MIN_ROWS, Call, realized
from partita.device.reuse_plan import Moving, Plan, Still, replaced
from partita.device.still import Forward, Scope, State, has_hooks
from partita.partition import Partition
from partita.protocol import DeviceId
from partita.tasks.task import LossFn

KEPT_BYTES = 256_000_000
"""Memory for rows that are kept between visits, of all workers of a run together."""
MAX_VISIT_BYTES = 1_000_000_000
"""A visit that would keep more computes everything."""


class KeptRows:
    """The rows kept between visits, those of the devices visited last; dropping them changes no result."""

    def __init__(self, max_bytes: int = KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, DeviceId], Kept] = OrderedDict()

    def take(self, model: str, device: DeviceId, size: int) -> Kept:
        """Return what is kept of a device's examples for a model, and let go of it."""
        kept = self._kept.pop((model, device), None)
        if kept is None:
            return Kept(size)
        self._bytes -= kept.nbytes
        return kept if kept.size == size else Kept(size)

    def put(self, model: str, device: DeviceId, kept: Kept) -> None:
        """Keep what stays valid, and drop that of the devices visited longest ago."""
        kept.forget()
        if not kept.nbytes:
            return
        self._kept[model, device] = kept
        self._bytes += kept.nbytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes


@dataclass
class Reuse:
    """What the visits of one model compute only once."""

    model: nn.Module
    partition: Partition
    frozen: str
    """The digest of the frozen part."""
    plans: Mapping[Moving, Plan]
    rows: KeptRows

    @contextmanager
    def visit(self, device: DeviceId, size: int, passes: Mapping[Moving, bool]) -> Iterator["Reusing"]:
        """Return what wraps the batches and the loss of a visit.

        Args:
            device: the device.
            size: the number of its training examples.
            passes: whether a phase in which some parts move has several passes over them.
        """
        kept = self.rows.take(self.frozen, device, size)
        visit = Reusing(self, kept, passes)
        try:
            yield visit
        finally:
            visit.end()
        self.rows.put(self.frozen, device, kept)


@dataclass
class Reusing:
    """One visit."""

    reuse: Reuse
    kept: Kept
    passes: Mapping[Moving, bool]
    _scope: Scope = field(default_factory=Scope)
    _batch: tuple[Batch, Tensor] | None = None
    _moving: Moving | None = None
    _plan: Plan | None = None
    _refused: set[str] = field(default_factory=set)
    _patches: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        parts, partition = self.reuse.partition.of(self.reuse.model), self.reuse.partition
        self._first = {
            part: getattr(parts, part)[names[0]]
            for part in ("personal", "shared")
            if (names := partition.trained(part))
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
            call = Call(positions, self.kept, self._plan.shapes, self._refused, self._kind)
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
        if self._batch is None or batch is not self._batch[0] or model is not self.reuse.model:
            return None
        return self._batch[1] if len(self._batch[1]) >= MIN_ROWS else None

    def _enter_phase(self) -> None:
        """Look which parts move now, and put off the modules of the plan for them, in place."""
        moving = frozenset(part for part, tensor in self._first.items() if tensor.requires_grad)
        if moving == self._moving:
            return
        self.end()
        self.kept.forget()
        self._moving = moving
        plan = self.reuse.plans.get(moving, _NOTHING)
        stills = [still for still in plan.modules if still.is_frozen or self.passes[moving]]
        if stills and plan.bytes_per_example * self.kept.size <= MAX_VISIT_BYTES:
            self._plan = plan
            forwards = {still.module: self._forward(still) for still in stills if not has_hooks(still.module)}
            self._patches.enter_context(replaced(forwards))

    def _forward(self, still: Still) -> Forward:
        module = still.module
        modes = "".join("01"[each.training] for each in module.modules())
        label = " ".join([still.name, modes, repr(module)])
        return Forward(module, label, is_constant=still.is_frozen, scope=self._scope, state=State(module))


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
