"""A visit: load v, update, finetune or evaluate, file the new v, and reply.

The personal part comes from the device's own store and goes back there. The reply is made of the change
of the shared part, a weight and measurements; it has no field in which v could leave.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from torch import Tensor, nn

from partita.data.examples import Batch, Examples, batches_per_epoch, examples_of, shuffled
from partita.device.store import Store
from partita.errors import CannotDo, ConfigError
from partita.methods.carried import Carried, LocalFn, carries, kept_by, make_update, sent_by
from partita.methods.descent import Diverged, OptimizerFn, Steps, descend
from partita.params import Params, change_of, cloned, copy_into, digest_of, largest_of, pull
from partita.partition import Partition, Parts
from partita.partition.selection import Part, tensors_of
from partita.protocol import (
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


@dataclass(frozen=True, kw_only=True)
class Role:
    """What devices know of a stage beforehand: how its model is split and how they learn."""

    partition: Partition
    local: LocalFn
    optimizer: OptimizerFn
    stateful: bool = True


@dataclass(frozen=True)
class _Bench:
    """A model that one visit after another uses: everything that a visit can change is loaded anew."""

    model: nn.Module
    partition: Partition
    scratch: Params
    """The buffers that are not in the model's state, as they were when it was built."""
    frozen: str
    """The digest of the frozen part."""

    @property
    def parts(self) -> Parts:
        """The model's own tensors, looked up anew: a model may put another tensor in a buffer's place."""
        return self.partition.of(self.model)


_MOST_BENCHES = 4
"""Models kept at a time: a run needs two, and more only where personal parts differ in size."""


class Visitor:
    """Carries out the visits of a run, one at a time, with one model for all devices that have the same.

    Args:
        task: what is learned.
        roles: what devices do in each stage.
        store: where personal parts are kept.
        seed: the run's seed.
    """

    def __init__(self, task: Task, roles: Mapping[Stage, Role], store: Store, *, seed: int) -> None:
        self.task = task
        self.roles = roles
        self.store = store
        self.seed = seed
        self._benches: dict[int, _Bench] = {}
        self._starts: dict[str, Params] = {}

    def __call__(self, order: Order) -> Reply | Failure:
        """Carry out one order, with random numbers of its own: the caller's are the caller's to keep."""
        bench = self._bench(order)
        try:
            seed_everything(self._seed(order))
            kept = self._load(bench, order)
            return self._work(bench, order, kept)
        except (Diverged, CannotDo) as error:
            return Failure(device=order.device, reason=str(error))
        except Exception as error:
            error.add_note(f"On device {order.device!r}, in round {order.round} of `{order.stage}`.")
            raise

    def _work(self, bench: _Bench, order: Order, kept: Params) -> Reply:
        match order.work:
            case Update():
                return self._update(bench, order, order.work, self._carried(bench, order, kept))
            case Finetune():
                return self._finetune(bench, order, order.work)
            case Evaluate():
                return self._evaluate(bench, order, order.work)

    def _update(self, bench: _Bench, order: Order, work: Update, carried: Carried) -> Reply:
        role = self.roles[order.stage]
        examples = self._training(order)
        update = make_update(
            role.local,
            personal=_steps(work, work.personal, examples, role.optimizer),
            shared=_steps(work, work.shared, examples, role.optimizer),
            carried=carried,
        )
        batches = self._batches(order, work, examples)
        losses = update(bench.model, bench.partition, batches, self._loss(bench, order))
        parts = bench.parts
        change = change_of({**parts.shared, **carried.sent}, order.shared)
        _check_finite("change of the shared part", change)
        self._file({**parts.personal, **carried.kept} if role.stateful else {}, order)
        weight = len(examples) if work.weights == "examples" else 1
        return _reply(order, weight, _training_measures(examples, losses), change)

    def _finetune(self, bench: _Bench, order: Order, work: Finetune) -> Reply:
        role = self.roles[order.stage]
        examples = self._training(order)
        moves: dict[Part, Steps] = {"personal": _steps(work, work.personal, examples, role.optimizer)}
        batches = self._batches(order, work, examples)
        losses = descend(moves, bench.model, bench.partition, batches, self._loss(bench, order))
        self._file(bench.parts.personal, order)
        return _reply(order, len(examples), _training_measures(examples, losses))

    def _evaluate(self, bench: _Bench, order: Order, work: Evaluate) -> Reply:
        splits = self.task.devices[order.device]
        examples = {name: examples_of(splits[name]) for name in work.splits if name in splits}
        metrics = {
            name: measure(self.task, bench.model, split) for name, split in examples.items() if len(split)
        }
        return Reply(devices=(order.device,), weight=1, change=None, metrics=metrics)

    def _load(self, bench: _Bench, order: Order) -> Params:
        """Load all that the visit's model is made of, and return what the device has kept."""
        parts = bench.parts
        copy_into(parts.shared, {name: order.shared[name] for name in parts.shared})
        kept = self._kept(order, bench.partition)
        try:
            copy_into(parts.personal, self._personal(order, bench.partition, kept))
        except ValueError as error:
            raise ConfigError(f"What device {order.device!r} keeps is not of its model: {error}") from error
        copy_into(_scratch(bench.model), bench.scratch)
        return kept

    def _kept(self, order: Order, partition: Partition) -> Params:
        if order.start.personal is not None:
            self._starts[order.start.digest] = order.start.personal
        if not partition.names("personal") and not carries(self.roles[order.stage].local):
            return {}
        return self.store.load(order.device, order.counted) or {}

    def _personal(self, order: Order, partition: Partition, kept: Params) -> Params:
        wants_start = isinstance(order.work, Evaluate) and order.work.model == "global"
        own = {} if wants_start or not self.roles[order.stage].stateful else partition.personal_in(kept)
        if own:
            return own
        start = self._starts[order.start.digest]
        return partition.begin(order.shared) if partition.begin and not wants_start else start

    def _carried(self, bench: _Bench, order: Order, kept: Params) -> Carried:
        """Return what the stage's method has besides the model, as it declares."""
        local, parts = self.roles[order.stage].local, bench.parts
        declared = kept_by(local, bench.partition, parts)
        sent = sent_by(local, bench.partition, parts.shared)
        return Carried(
            kept=cloned({name: kept.get(name, tensor) for name, tensor in declared.items()}),
            sent=cloned({name: order.shared[name] for name in sent}),
        )

    def _file(self, personal: Params, order: Order) -> None:
        if personal:
            _check_finite("personal part", personal)
            self.store.save(order.device, order.label, personal)

    def _training(self, order: Order) -> Examples:
        examples = examples_of(self.task.devices[order.device].get("train", ()))
        if not len(examples):
            raise CannotDo("The device has no training examples.")
        return examples

    def _batches(self, order: Order, work: Update | Finetune, examples: Examples) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self._seed(order))
        return shuffled(examples, work.batch_size, generator)

    def _seed(self, order: Order) -> int:
        return derive_seed(self.seed, order.stage, order.round, order.device)

    def _loss(self, bench: _Bench, order: Order) -> LossFn:
        """Return the task's loss with all that is added to it in this visit."""
        penalties = list(self._penalties(bench.partition, order))
        if not penalties:
            return self.task.loss
        return lambda model, batch: sum((p(model) for p in penalties), start=self.task.loss(model, batch))

    def _penalties(self, partition: Partition, order: Order) -> Iterator[Callable[[nn.Module], Tensor]]:
        if partition.penalty is not None:
            yield partition.penalty
        if partition.l2 and partition.trained("personal"):
            start = self._starts[order.start.digest] if partition.l2_to == "start" else None
            yield partial(_pull, partition=partition, part="personal", towards=start, strength=partition.l2)
        if isinstance(order.work, Update) and order.work.proximal and partition.trained("shared"):
            sent, strength = order.shared, order.work.proximal
            yield partial(_pull, partition=partition, part="shared", towards=sent, strength=strength)

    def _bench(self, order: Order) -> _Bench:
        partition = self.roles[order.stage].partition.on(order.device)
        bench = self._benches.pop(id(partition), None)
        if bench is None:
            model = build_model(self.task, partition, seed=self.seed)
            frozen = digest_of(partition.of(model).frozen)
            bench = _Bench(model, partition, cloned(_scratch(model)), frozen)
            if len(self._benches) == _MOST_BENCHES:
                del self._benches[next(iter(self._benches))]
        self._benches[id(partition)] = bench
        if bench.frozen != order.start.frozen:
            raise ValueError(
                "The frozen part of this device's model is not the server's: its digest is "
                f"{bench.frozen[:12]}, expected {order.start.frozen[:12]}."
            )
        return bench


def _pull(
    model: nn.Module, *, partition: Partition, part: Part, towards: Params | None, strength: float
) -> Tensor:
    state = tensors_of(model)
    return pull({name: state[name] for name in partition.trained(part)}, towards, strength=strength)


def _steps(work: Update | Finetune, pace: Pace, examples: Examples, optimizer: OptimizerFn) -> Steps:
    count = pace.steps or pace.epochs * batches_per_epoch(examples, work.batch_size)
    return Steps(count=count, lr=pace.lr, max_grad_norm=work.max_grad_norm, optimizer=optimizer)


def _reply(order: Order, weight: int, measures: Measures, change: Params | None = None) -> Reply:
    return Reply(devices=(order.device,), weight=weight, change=change, metrics={"train": measures})


def _training_measures(examples: Examples, losses: list[float]) -> Measures:
    return {"examples": len(examples), "loss": fmean(losses) if losses else None}


def _check_finite(what: str, params: Params) -> None:
    for name, tensor in params.items():
        if not math.isfinite(largest_of(tensor)):
            raise CannotDo(f"The {what} is not finite in `{name}`.")


def _scratch(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not in the model's state."""
    buffers = dict(model.named_buffers())
    return {name: buffers[name] for name in buffers.keys() - tensors_of(model).keys()} if buffers else {}
