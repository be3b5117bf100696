"""A visit: load v; update, fine-tune or evaluate; save the new v; reply.

The personal part comes from the device's own store and goes back there. The reply consists of the change of
the shared part, a weight and metrics; it has no field in which v could leave.
"""

import logging
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from statistics import fmean

import torch

from partita.data.examples import Examples, Shuffled
from partita.data.rows import BadData
from partita.device.accelerators import accelerator_of
from partita.device.batches import LEFT_OUT, Warn, Warnings, count_steps, draw_batches
from partita.device.penalties import with_penalties
from partita.device.placement import Placement, in_precision
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import DiskStore, Store, check_shapes
from partita.device.workbench import Workbench, Workbenches
from partita.errors import CannotDo, ConfigError, described, is_of_device, place_of
from partita.mean import WeightedMean
from partita.methods.carried import Carried, carries, kept_by, make_update, sent_by
from partita.methods.declared import LACKS, LocalFn, OwnExamples, declared
from partita.methods.descent import Diverged, Steps, descend
from partita.methods.method import Finetuning, Method
from partita.methods.own_model import begin, predictor
from partita.params import Params, change_of, cloned, copy_into, is_finite, shapes_of
from partita.partition import Part, Partition, Personalization
from partita.partition.padding import Fill, narrowed, padded
from partita.protocol import (
    DeviceId,
    Evaluate,
    Failure,
    Finetune,
    Measures,
    Order,
    Reply,
    Stage,
    Update,
    derive_seed,
)
from partita.reuse.lazy import Deviated
from partita.reuse.visit import Plainly, Reusing, Visited
from partita.reuse.visits import Reuses
from partita.tasks.build import seed_everything
from partita.tasks.measure import measure
from partita.tasks.task import LossFn, Task

logger = logging.getLogger(__name__)

_DEFAULT = Computing()


class Visitor:
    """Carries out the visits of a run, one at a time, with one model for all devices that have the same.

    Args:
        task: data, model, loss and metrics.
        roles: how devices learn in each stage.
        store: storage of personal parts.
        seed: the run's seed.
        computing: where and how visits compute.
        worker: the number of this process among the workers of the machine, which share its accelerators.

    Raises:
        ConfigError: this machine cannot compute in that way.
    """

    def __init__(
        self,
        task: Task,
        roles: Mapping[Stage, Role],
        store: Store,
        *,
        seed: int,
        computing: Computing = _DEFAULT,
        worker: int = 0,
    ) -> None:
        self.accelerator = accelerator_of(computing, worker)
        self.task = in_precision(task, computing.precision, self.accelerator)
        self.roles = roles
        self.store = store
        self.seed = seed
        self._place = Placement(self.accelerator)
        self._workbenches = Workbenches(task, seed=seed, accelerator=self.accelerator)
        folder = store.rows_folder if computing.reuse == "disk" and isinstance(store, DiskStore) else None
        self._reuses = Reuses(
            self.task,
            self._examples,
            seed=seed,
            is_off=not computing.reuse,
            folder=folder,
        )
        self._starts: dict[str, Params] = {}
        self._skips_errors = computing.on_error == "skip"
        self.warn: Warn = Warnings()

    def __call__(self, order: Order, mean: WeightedMean | None = None) -> Reply | Failure:
        """Carry out one order, with a seed of its own; the caller restores its random state.

        Args:
            order: the order.
            mean: a mean of changes of the order's shared part. An update adds its change to it, which is
                faster than to reply with the change, unless the order is `single`.
        """
        try:
            bench = self._workbench(order)
            if order.counted is not None:
                self.store.commit(order.counted, [order.device], [order.device])
            return self._visit(bench, order, None if order.single else mean)
        except (Diverged, CannotDo) as error:
            return Failure(device=order.device, reason=str(error))
        except Exception as error:
            if self._skips_errors and (isinstance(error, BadData) or is_of_device(error)):
                self._workbenches.clear()
                return Failure(device=order.device, reason=f"{described(error)}.")
            where = f"in round {order.round} of `{order.stage}`{place_of(error)}"
            error.add_note(f"On device {order.device!r}, {where}.")
            raise

    def _visit(self, bench: Workbench, order: Order, mean: WeightedMean | None) -> Reply:
        """Carry out the work; again, and computing everything, where reuse turns out not to be possible."""
        try:
            return self._work(bench, order, mean)
        except Deviated as deviation:
            logger.debug("The visit of %r computes everything: %s.", order.device, deviation)
            with self._reuses.off():
                return self._work(bench, order, mean)

    def _work(self, bench: Workbench, order: Order, mean: WeightedMean | None) -> Reply:
        seed_everything(self._seed(order), self.accelerator)
        kept = self._load(bench, order)
        match order.work:
            case Update():
                return self._update(bench, order, order.work, self._carried(bench, order, kept), mean)
            case Finetune():
                self._begin(bench, order, kept)
                return self._finetune(bench, order, order.work)
            case Evaluate():
                if order.work.model == "personal" and order.stage is not Stage.FINETUNED:
                    self._begin(bench, order, kept)
                return self._evaluate(bench, order, order.work)

    def _update(
        self, bench: Workbench, order: Order, work: Update, carried: Carried, mean: WeightedMean | None
    ) -> Reply:
        method = self.roles[order.stage].method
        examples = self._training(order)
        personal = count_steps(method, work.personal, examples)
        shared = count_steps(method, work.shared, examples)
        update = make_update(
            method.local,
            personal=personal,
            shared=shared,
            carried=carried,
            examples=self._own_examples(examples, method.batch_size),
        )
        batches = self._batches(bench, order, method, examples)
        expected = bench.partition.shapes("personal") | shapes_of(carried.kept)
        counts: dict[Part, int] = {"personal": personal.count, "shared": shared.count}
        with self._reusing(bench, order, method.batch_size, examples, counts) as reuse:
            loss = reuse.loss(self._loss(bench, order))
            losses = update(bench.model, bench.partition, reuse.batches(batches), loss)
        parts = bench.parts
        # Writing v takes twice its memory, so it comes before the change of u is made.
        if method.stateful:
            self._save({**parts.personal, **carried.kept}, order, expected)
        weight = len(examples) if method.weights == "examples" else 1
        if (weighs := declared(method.local, "weighs")) is not None:
            weight = weighs(parts.shared, len(examples))
        reply = _reply(order, weight, _training_measures(examples, losses))
        after = self._place.back({**parts.shared, **carried.sent})
        if not self.roles[order.stage].personalization.has_whole_shared(bench.personalization):
            after = padded(after, order.shared, _fill(method.local))
        return _with_change(reply, after, order.shared, mean)

    def _finetune(self, bench: Workbench, order: Order, work: Finetune) -> Reply:
        finetuning = self.roles[order.stage].finetuning
        examples = self._training(order)
        moves: dict[Part, Steps] = {"personal": count_steps(finetuning, work.personal, examples)}
        batches = self._batches(bench, order, finetuning, examples)
        counts: dict[Part, int] = {part: steps.count for part, steps in moves.items()}
        with self._reusing(bench, order, finetuning.batch_size, examples, counts) as reuse:
            loss = reuse.loss(self._loss(bench, order))
            losses = descend(moves, bench.model, bench.partition, reuse.batches(batches), loss)
        self._save(bench.parts.personal, order, bench.partition.shapes("personal"))
        return _reply(order, len(examples), _training_measures(examples, losses))

    def _evaluate(self, bench: Workbench, order: Order, work: Evaluate) -> Reply:
        splits, place = self.task.devices[order.device], self._place
        wanted = [name for name in work.splits if name in splits]
        examples = {name: place.examples(order.device, name, splits[name]) for name in wanted}
        local = self.roles[order.stage].own if work.model == "personal" else None
        model = predictor(local, bench.model, lambda: self._own_examples(self._examples(order.device)))
        metrics = {name: measure(self.task, model, split) for name, split in examples.items() if len(split)}
        return Reply(device=order.device, weight=1, change=None, metrics=metrics)

    def _load(self, bench: Workbench, order: Order) -> Params:
        """Load every part of the visit's model, in place, and return all that the device has kept."""
        # An update that draws a batch before it says what moves is taken to move everything.
        trains = not isinstance(order.work, Evaluate)
        parts = bench.partition.let_move(bench.model, "personal", "shared") if trains else bench.parts
        copy_into(parts.shared, _sent(order, parts.shared))
        kept = self._kept(order, bench.partition)
        try:
            copy_into(parts.personal, self._personal(order, bench.personalization, kept))
        except ValueError as error:
            raise ConfigError(
                f"The personal part of device {order.device!r} does not fit its model: {error}"
            ) from error
        bench.restore_scratch()
        return kept

    def _begin(self, bench: Workbench, order: Order, kept: Params) -> None:
        """Let the device's own model begin as its method declares, in place."""
        begin(self.roles[order.stage].own, bench.model, bench.partition, kept, self._place.to)

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

    def _carried(self, bench: Workbench, order: Order, kept: Params) -> Carried:
        """Return the tensors that the stage's method declares besides the model."""
        local = self.roles[order.stage].method.local
        if not carries(local):
            return Carried(kept={}, sent={})
        parts = bench.parts
        first = kept_by(local, bench.partition, parts)
        sent = sent_by(local, bench.partition, parts.shared)
        return Carried(
            kept=cloned(self._place.to({name: kept.get(name, tensor) for name, tensor in first.items()})),
            sent=cloned(self._place.to(_sent(order, {name: each.tensor for name, each in sent.items()}))),
        )

    def _save(self, personal: Params, order: Order, shapes: Mapping[str, torch.Size]) -> None:
        if personal:
            personal = self._place.back(personal)
            check_shapes(order.device, personal, shapes)
            _check_finite("personal part", personal)
            if order.keep is not None:
                self.store.preserve(order.device, order.keep)
            self.store.save(order.device, order.label, personal)

    def _training(self, order: Order) -> Examples:
        examples = self._examples(order.device)
        if not len(examples):
            raise CannotDo("The device has no training examples.")
        return examples

    def _examples(self, device: DeviceId) -> Examples:
        return self._place.examples(device, "train", self.task.devices[device].get("train", ()))

    def _own_examples(self, examples: Examples, batch_size: int = 1) -> OwnExamples:
        return OwnExamples(examples, batch_size, self.task.predict)

    def _reusing(
        self,
        bench: Workbench,
        order: Order,
        batch_size: int,
        examples: Examples,
        steps: Mapping[Part, int],
    ) -> AbstractContextManager[Reusing | Plainly]:
        own = bench.personalization
        return self._reuses.visit(
            Visited(order.device, bench.model, own, bench.frozen, batch_size, len(examples), steps)
        )

    def _batches(
        self, bench: Workbench, order: Order, settings: Method | Finetuning, examples: Examples
    ) -> Shuffled:
        """Return the visit's batches, with a log message the first time in a run that one is left out."""

        def leave_out() -> None:
            self.warn(LEFT_OUT, order.device)

        seed = self._seed(order)
        return draw_batches(examples, settings.batch_size, bench.model, seed=seed, leave_out=leave_out)

    def _loss(self, bench: Workbench, order: Order) -> LossFn:
        """Return the task's loss plus the penalties of this visit."""
        proximal = self.roles[order.stage].method.proximal if isinstance(order.work, Update) else 0.0
        return with_penalties(
            self.task.loss,
            bench.personalization,
            start=self._starts.get(order.start.digest, {}),
            sent=_sent(order, bench.parts.shared) if proximal else {},
            proximal=proximal,
            to=self._place.to,
        )

    def _workbench(self, order: Order) -> Workbench:
        role = self.roles[order.stage]
        own = role.personalization.on(order.device)
        if isinstance(order.work, Evaluate) or self._reuses.is_off:
            return self._workbenches.find(order, own)
        settings = role.method if isinstance(order.work, Update) else role.finetuning
        if self._reuses.is_settled(own, settings):
            return self._workbenches.find(order, own)
        bench = self._workbenches.find(order, own, is_new=True)
        self._reuses.settle(bench.model, bench.personalization, settings)
        return bench

    def _seed(self, order: Order) -> int:
        return derive_seed(self.seed, order.stage, order.round, order.device)


def _sent(order: Order, like: Params) -> Params:
    """Return the tensors of an order that have the names of others, as much of each as these have."""
    return {name: narrowed(order.shared[name], tensor.shape) for name, tensor in like.items()}


def _fill(local: LocalFn) -> Fill:
    """Return how a method fills coordinates that a device lacks.

    Raises:
        ConfigError: it does not.
    """
    fills = declared(local, "fills")
    if fills is None:
        raise ConfigError(LACKS)
    return fills


def _reply(order: Order, weight: int, measures: Measures) -> Reply:
    return Reply(device=order.device, weight=weight, change=None, metrics={"train": measures})


def _with_change(reply: Reply, after: Params, before: Params, mean: WeightedMean | None) -> Reply:
    """Return a reply with the change of the shared part; with a mean, add it there instead, in place."""
    if mean is None:
        change = change_of(after, before)
        _check_finite("change of the shared part", change)
        return replace(reply, change=change)
    try:
        mean.add_after(reply.device, after, reply.weight)
    except ValueError as error:
        _check_finite("change of the shared part", change_of(after, before))
        raise CannotDo(str(error)) from error
    return reply


def _training_measures(examples: Examples, losses: list[float]) -> Measures:
    """Return the mean loss over all steps, and that of the first step, before the model has moved.

    Raises:
        Diverged: a loss that a method of one's own returns is not finite.
    """
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            raise Diverged(f"The loss became {loss} in step {step}.")
    means = {"loss": fmean(losses), "start_loss": losses[0]} if losses else {"loss": None, "start_loss": None}
    return {"examples": len(examples), **means}


def _check_finite(what: str, params: Params) -> None:
    for name, tensor in params.items():
        if not is_finite(tensor):
            raise CannotDo(f"The {what} is not finite in `{name}`.")
