"""A visit: load v; update, fine-tune or evaluate; save the new v; reply.

The personal part comes from the device's own store and goes back there. The reply consists of the change of
the shared part, a weight and metrics; it has no field in which v could leave.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager

from partita.data.examples import Examples, Shuffled
from partita.data.rows import BadData
from partita.device.accelerators import accelerator_of
from partita.device.answers import trained, training_measures, with_change
from partita.device.batches import LEFT_OUT, Warn, Warnings, count_steps, draw_batches
from partita.device.loading import Loader, sent_of
from partita.device.memory_format import has_known_updates
from partita.device.penalties import with_penalties
from partita.device.placement import Placement, in_precision
from partita.device.roles import Role
from partita.device.settings import Computing
from partita.device.store import DiskStore, Store
from partita.device.workbench import Workbench, Workbenches
from partita.errors import CannotDo, ConfigError, described, is_of_device, place_of
from partita.mean import WeightedMean
from partita.methods.carried import Carried, make_update
from partita.methods.declared import LACKS, LocalFn, OwnExamples, declared
from partita.methods.descent import Diverged, Steps, descend
from partita.methods.method import Finetuning, Method
from partita.methods.own_model import predictor
from partita.params import shapes_of
from partita.partition import Part
from partita.partition.padding import Fill, padded
from partita.protocol import (
    DeviceId,
    Evaluate,
    Failure,
    Finetune,
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
        self._loader = Loader(roles, store, self._place)
        self._workbenches = Workbenches(
            task, seed=seed, accelerator=self.accelerator, arranges_images=has_known_updates(roles)
        )
        folder = store.rows_folder if computing.reuse == "disk" and isinstance(store, DiskStore) else None
        self._reuses = Reuses(
            self.task,
            self._examples,
            seed=seed,
            is_off=not computing.reuse,
            folder=folder,
        )
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
        except SystemExit as leaving:
            message = f"The code of the task called `sys.exit({leaving.code!r})`"
            raise RuntimeError(message).with_traceback(leaving.__traceback__) from None

    def _work(self, bench: Workbench, order: Order, mean: WeightedMean | None) -> Reply:
        seed_everything(self._seed(order), self.accelerator)
        carried = self._prepare(bench, order)
        match order.work:
            case Update():
                return self._update(bench, order, order.work, carried, mean)
            case Finetune():
                return self._finetune(bench, order, order.work)
            case Evaluate():
                return self._evaluate(bench, order, order.work)

    def _prepare(self, bench: Workbench, order: Order) -> Carried:
        """Load the model, in place, and return the further tensors of an update.

        Tensors that the device keeps may be as large as the model: their memory is free when this returns.
        """
        kept = self._loader.load(bench, order)
        if isinstance(order.work, Update):
            return self._loader.carried(bench, order, kept)
        is_global = isinstance(order.work, Evaluate) and order.work.model == "global"
        is_finetuned = isinstance(order.work, Evaluate) and order.stage is Stage.FINETUNED
        if not (is_global or is_finetuned):
            self._loader.begin(bench, order, kept)
        return Carried(kept={}, sent={})

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
        kept_shapes = shapes_of(carried.kept)
        counts: dict[Part, int] = {"personal": personal.count, "shared": shared.count}
        with self._reusing(bench, order, method.batch_size, examples, counts) as reuse:
            loss = reuse.loss(self._loss(bench, order))
            losses = update(bench.model, bench.partition, reuse.batches(batches), loss)
        parts = bench.parts
        # Writing v takes twice its memory, so it comes before the change of u is made.
        if method.stateful and (kept := {**parts.personal, **carried.kept}):
            self._loader.save(kept, order, bench.partition.shapes("personal") | kept_shapes)
        weight = len(examples) if method.weights == "examples" else 1
        if (weighs := declared(method.local, "weighs")) is not None:
            weight = weighs(parts.shared, len(examples))
        reply = trained(order, weight, training_measures(examples, losses))
        after = self._place.back({**parts.shared, **carried.sent})
        if not self.roles[order.stage].personalization.has_whole_shared(bench.personalization):
            after = padded(after, order.shared, _fill(method.local))
        return with_change(reply, after, order.shared, mean)

    def _finetune(self, bench: Workbench, order: Order, work: Finetune) -> Reply:
        finetuning = self.roles[order.stage].finetuning
        examples = self._training(order)
        moves: dict[Part, Steps] = {"personal": count_steps(finetuning, work.personal, examples)}
        batches = self._batches(bench, order, finetuning, examples)
        counts: dict[Part, int] = {part: steps.count for part, steps in moves.items()}
        with self._reusing(bench, order, finetuning.batch_size, examples, counts) as reuse:
            loss = reuse.loss(self._loss(bench, order))
            losses = descend(moves, bench.model, bench.partition, reuse.batches(batches), loss)
        self._loader.save(bench.parts.personal, order, bench.partition.shapes("personal"))
        return trained(order, len(examples), training_measures(examples, losses))

    def _evaluate(self, bench: Workbench, order: Order, work: Evaluate) -> Reply:
        splits, place = self.task.devices[order.device], self._place
        wanted = [name for name in work.splits if name in splits]
        examples = {name: place.examples(order.device, name, splits[name]) for name in wanted}
        local = self.roles[order.stage].own if work.model == "personal" else None
        model = predictor(local, bench.model, lambda: self._own_examples(self._examples(order.device)))
        metrics = {name: measure(self.task, model, split) for name, split in examples.items() if len(split)}
        return Reply(device=order.device, weight=1, change=None, metrics=metrics)

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
            start=self._loader.start(order),
            sent=sent_of(order, bench.parts.shared) if proximal else {},
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


def _fill(local: LocalFn) -> Fill:
    """Return how a method fills coordinates that a device lacks.

    Raises:
        ConfigError: it does not.
    """
    fills = declared(local, "fills")
    if fills is None:
        raise ConfigError(LACKS)
    return fills
