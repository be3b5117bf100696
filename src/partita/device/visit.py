"""A visit: load v; update, fine-tune or evaluate; save the new v; reply.

The personal part comes from the device's own store and goes back there. The reply consists of the change of
the shared part, a weight and metrics; it has no field in which v could leave.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import Tensor, nn

from partita.data.examples import Examples, Shuffled, batches_per_epoch, examples_of
from partita.device.roles import Role
from partita.device.store import Store, check_shapes
from partita.errors import CannotDo, ConfigError
from partita.methods.carried import Carried, carries, kept_by, make_update, sent_by
from partita.methods.descent import Diverged, Steps, descend
from partita.methods.method import Finetuning, Method
from partita.params import Params, change_of, cloned, copy_into, digest_of, largest_of, pull, shapes_of
from partita.partition import Part, Partition, Parts, Personalization, uses_batch_statistics
from partita.partition.selection import tensors_of
from partita.protocol import (
    DeviceId,
    Evaluate,
    Failure,
    Finetune,
    Measures,
    Order,
    Pace,
    Reply,
    Stage,
    Update,
    derive_seed,
)
from partita.tasks.build import build_model, seed_everything
from partita.tasks.measure import measure
from partita.tasks.task import LossFn, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Workbench:
    """A model that successive visits reuse: each visit loads again everything that a visit can change."""

    model: nn.Module
    personalization: Personalization
    scratch: Params
    """The buffers that are not in the model's state, as they were when it was built."""
    frozen: str
    """The digest of the frozen part."""

    @property
    def partition(self) -> Partition:
        """How the model is split."""
        return self.personalization.partition

    @property
    def parts(self) -> Parts:
        """The model's own tensors, looked up each time: a model may replace the tensor of a buffer."""
        return self.partition.of(self.model)


_MAX_WORKBENCHES = 4
"""Models kept at a time: a run needs two, and more only where personal parts differ in size."""


_LEFT_OUT = (
    "BatchNorm cannot be trained on a batch of one example: where the last batch of a pass has one, as on "
    "device %r, it is left out."
)

Warn = Callable[[str, DeviceId], object]
"""Called with a warning, and the device that it names, as often as there is a reason for it."""


class Warnings:
    """Logs each warning once, with the first device that has a reason for it."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, warning: str, device: DeviceId) -> None:
        """Log a warning that has not been logged."""
        if warning not in self._logged:
            self._logged.add(warning)
            logger.warning(warning, device)


class Visitor:
    """Carries out the visits of a run, one at a time, with one model for all devices that have the same.

    Args:
        task: data, model, loss and metrics.
        roles: how devices learn in each stage.
        store: storage of personal parts.
        seed: the run's seed.
    """

    def __init__(self, task: Task, roles: Mapping[Stage, Role], store: Store, *, seed: int) -> None:
        self.task = task
        self.roles = roles
        self.store = store
        self.seed = seed
        self._workbenches: dict[int, _Workbench] = {}
        self._starts: dict[str, Params] = {}
        self._pretrained: dict[str, Params] = {}
        self.warn: Warn = Warnings()

    def __call__(self, order: Order) -> Reply | Failure:
        """Carry out one order, with a seed of its own; the caller restores its random state."""
        bench = self._workbench(order)
        try:
            seed_everything(self._seed(order))
            if order.counted is not None:
                self.store.commit(order.counted, [order.device], [order.device])
            kept = self._load(bench, order)
            return self._work(bench, order, kept)
        except (Diverged, CannotDo) as error:
            return Failure(device=order.device, reason=str(error))
        except Exception as error:
            error.add_note(f"On device {order.device!r}, in round {order.round} of `{order.stage}`.")
            raise

    def _work(self, bench: _Workbench, order: Order, kept: Params) -> Reply:
        match order.work:
            case Update():
                return self._update(bench, order, order.work, self._carried(bench, order, kept))
            case Finetune():
                return self._finetune(bench, order, order.work)
            case Evaluate():
                return self._evaluate(bench, order, order.work)

    def _update(self, bench: _Workbench, order: Order, work: Update, carried: Carried) -> Reply:
        method = self.roles[order.stage].method
        examples = self._training(order)
        update = make_update(
            method.local,
            personal=_steps(method, work.personal, examples),
            shared=_steps(method, work.shared, examples),
            carried=carried,
        )
        batches = self._batches(bench, order, method, examples)
        expected = bench.partition.shapes("personal") | shapes_of(carried.kept)
        losses = update(bench.model, bench.partition, batches, self._loss(bench, order))
        parts = bench.parts
        change = change_of({**parts.shared, **carried.sent}, order.shared)
        _check_finite("change of the shared part", change)
        if method.stateful:
            self._save({**parts.personal, **carried.kept}, order, expected)
        weight = len(examples) if method.weights == "examples" else 1
        return _reply(order, weight, _training_measures(examples, losses), change)

    def _finetune(self, bench: _Workbench, order: Order, work: Finetune) -> Reply:
        finetuning = self.roles[order.stage].finetuning
        examples = self._training(order)
        moves: dict[Part, Steps] = {"personal": _steps(finetuning, work.personal, examples)}
        batches = self._batches(bench, order, finetuning, examples)
        losses = descend(moves, bench.model, bench.partition, batches, self._loss(bench, order))
        self._save(bench.parts.personal, order, bench.partition.shapes("personal"))
        return _reply(order, len(examples), _training_measures(examples, losses))

    def _evaluate(self, bench: _Workbench, order: Order, work: Evaluate) -> Reply:
        splits = self.task.devices[order.device]
        examples = {name: examples_of(splits[name]) for name in work.splits if name in splits}
        metrics = {
            name: measure(self.task, bench.model, split) for name, split in examples.items() if len(split)
        }
        return Reply(device=order.device, weight=1, change=None, metrics=metrics)

    def _load(self, bench: _Workbench, order: Order) -> Params:
        """Load every part of the visit's model, in place, and return what the device has kept."""
        parts = bench.parts
        copy_into(parts.shared, {name: order.shared[name] for name in parts.shared})
        kept = self._kept(order, bench.partition)
        try:
            copy_into(parts.personal, self._personal(order, bench.personalization, kept))
        except ValueError as error:
            raise ConfigError(
                f"The personal part of device {order.device!r} does not fit its model: {error}"
            ) from error
        copy_into(_scratch(bench.model), bench.scratch)
        return kept

    def _kept(self, order: Order, partition: Partition) -> Params:
        if order.start.personal is not None:
            self._starts[order.start.digest] = order.start.personal
        if not partition.names("personal") and not carries(self.roles[order.stage].method.local):
            return {}
        return self.store.load(order.device) or {}

    def _personal(self, order: Order, own: Personalization, kept: Params) -> Params:
        """Return the personal part that the visit begins with: the device's saved one, or the initial one."""
        is_global = isinstance(order.work, Evaluate) and order.work.model == "global"
        uses_kept = self.roles[order.stage].method.stateful and not is_global
        if uses_kept and (personal := own.partition.personal_in(kept)):
            return personal
        if own.start is not None and not is_global:
            return own.start(order.shared)
        return self._starts[order.start.digest]

    def _carried(self, bench: _Workbench, order: Order, kept: Params) -> Carried:
        """Return the tensors that the stage's method declares besides the model."""
        local, parts = self.roles[order.stage].method.local, bench.parts
        declared = kept_by(local, bench.partition, parts)
        sent = sent_by(local, bench.partition, parts.shared)
        return Carried(
            kept=cloned({name: kept.get(name, tensor) for name, tensor in declared.items()}),
            sent=cloned({name: order.shared[name] for name in sent}),
        )

    def _save(self, personal: Params, order: Order, shapes: Mapping[str, torch.Size]) -> None:
        if personal:
            check_shapes(order.device, personal, shapes)
            _check_finite("personal part", personal)
            if order.keep is not None:
                self.store.preserve(order.device, order.keep)
            self.store.save(order.device, order.label, personal)

    def _training(self, order: Order) -> Examples:
        examples = examples_of(self.task.devices[order.device].get("train", ()))
        if not len(examples):
            raise CannotDo("The device has no training examples.")
        return examples

    def _batches(
        self, bench: _Workbench, order: Order, settings: Method | Finetuning, examples: Examples
    ) -> Shuffled:
        """Return the visit's batches; one of a single example is left out where BatchNorm needs two."""
        generator = torch.Generator().manual_seed(self._seed(order))
        model, batch_size = bench.model, settings.batch_size
        # An update that draws a batch before it says what moves is taken to move everything.
        bench.partition.let_move(model, "personal", "shared")

        def leaves_out_one() -> bool:
            if not uses_batch_statistics(model):
                return False
            if min(len(examples), batch_size) == 1:
                cause = "The device has one training example" if len(examples) == 1 else "`batch_size` is 1"
                raise CannotDo(f"{cause}: BatchNorm needs at least 2 in a batch to train.")
            self.warn(_LEFT_OUT, order.device)
            return True

        return Shuffled(examples, batch_size, generator, leaves_out_one)

    def _seed(self, order: Order) -> int:
        return derive_seed(self.seed, order.stage, order.round, order.device)

    def _loss(self, bench: _Workbench, order: Order) -> LossFn:
        """Return the task's loss plus the penalties of this visit."""
        penalties = list(self._penalties(bench.personalization, order))
        if not penalties:
            return self.task.loss
        return lambda model, batch: sum((p(model) for p in penalties), start=self.task.loss(model, batch))

    def _penalties(self, own: Personalization, order: Order) -> Iterator[Callable[[nn.Module], Tensor]]:
        if own.penalty is not None:
            yield own.penalty
        regularization, partition = own.regularization, own.partition
        if regularization.l2 and partition.trained("personal"):
            start = self._starts[order.start.digest] if regularization.l2_to == "start" else None
            strength = regularization.l2
            yield partial(_pull, partition=partition, part="personal", toward=start, strength=strength)
        proximal = self.roles[order.stage].method.proximal if isinstance(order.work, Update) else 0.0
        if proximal and partition.trained("shared"):
            sent, strength = order.shared, proximal
            yield partial(_pull, partition=partition, part="shared", toward=sent, strength=strength)

    def _workbench(self, order: Order) -> _Workbench:
        """Return the model for an order's stage and device, built where it is not kept."""
        own = self.roles[order.stage].personalization.on(order.device)
        if order.start.pretrained is not None:
            self._pretrained[order.start.frozen] = order.start.pretrained
        bench = self._workbenches.pop(id(own), None)
        if bench is None:
            model = build_model(self.task, own, seed=self.seed)
            parts, pretrained = own.partition.of(model), self._pretrained.get(order.start.frozen, {})
            copy_into({name: parts.frozen[name] for name in pretrained}, pretrained)
            bench = _Workbench(model, own, cloned(_scratch(model)), digest_of(parts.frozen))
            if len(self._workbenches) == _MAX_WORKBENCHES:
                del self._workbenches[next(iter(self._workbenches))]
        self._workbenches[id(own)] = bench
        if bench.frozen != order.start.frozen:
            raise ValueError(
                "The frozen part of this device's model differs from the server's: its digest is "
                f"{bench.frozen[:12]}, expected {order.start.frozen[:12]}."
            )
        return bench


def _pull(
    model: nn.Module, *, partition: Partition, part: Part, toward: Params | None, strength: float
) -> Tensor:
    state = tensors_of(model)
    return pull({name: state[name] for name in partition.trained(part)}, toward, strength=strength)


def _steps(settings: Method | Finetuning, pace: Pace, examples: Examples) -> Steps:
    in_pass = batches_per_epoch(examples, settings.batch_size)
    ends_with_one = in_pass > 1 and len(examples) - (in_pass - 1) * settings.batch_size == 1
    return Steps(
        count=pace.steps or pace.epochs * in_pass,
        lr=pace.lr,
        max_grad_norm=settings.max_grad_norm,
        optimizer=settings.optimizer,
        one_example_every=in_pass if ends_with_one and not pace.steps else 0,
    )


def _reply(order: Order, weight: int, measures: Measures, change: Params | None = None) -> Reply:
    return Reply(device=order.device, weight=weight, change=change, metrics={"train": measures})


def _training_measures(examples: Examples, losses: list[float]) -> Measures:
    """Return the mean loss over all steps, and that of the first step, before the model has moved."""
    means = {"loss": fmean(losses), "start_loss": losses[0]} if losses else {"loss": None, "start_loss": None}
    return {"examples": len(examples), **means}


def _check_finite(what: str, params: Params) -> None:
    for name, tensor in params.items():
        if not math.isfinite(largest_of(tensor)):
            raise CannotDo(f"The {what} is not finite in `{name}`.")


def _scratch(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not in the model's state."""
    buffers = dict(model.named_buffers())
    return {name: buffers[name] for name in buffers.keys() - tensors_of(model).keys()} if buffers else {}
