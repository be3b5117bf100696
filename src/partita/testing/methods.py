"""The laws of a method: it repeats itself anywhere, and nothing leaves a device that it does not declare."""

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from partita.api.runs import pipeline
from partita.config.building import Built, build
from partita.config.changes import with_values
from partita.config.reading import config_of
from partita.data.unseen import is_unseen
from partita.device.store import MemoryStore
from partita.executors.serial import SerialExecutor
from partita.methods import registry
from partita.methods.carried import kept_by, sent_by
from partita.params import shapes_of
from partita.protocol import Failure, Order, Reply, Stage, Tally, Update
from partita.runs.memory import MemoryJournal
from partita.studies.local import local_executor
from partita.tasks.build import build_model
from partita.testing.bits import check_same, content_of
from partita.testing.small import small_devices, small_task
from partita.training.pipeline import Pipeline

_ROUNDS: Mapping[str, Any] = {
    "name": "check",
    "task": {"kind": "partita.testing.small:small_task"},
    "pretrain": {"rounds": 1, "devices_per_round": 3, "batch_size": 4},
    "personalize": {"rounds": 2, "devices_per_round": 3, "batch_size": 4},
    "finetune": {"epochs": 1, "batch_size": 4},
}
_UNSEEN = 0.3


def check_method(
    method: str, settings: Mapping[str, Any] | None = None, *, workers: int = 2, folder: Path | None = None
) -> None:
    """Raise unless a method keeps the laws, on a small task of three classes.

    - Every hyperparameter has a default.
    - A run gives the same bits again, after it was stopped and resumed, and with worker processes.
    - Orders and replies have exactly the shared part and what the method declares in `sends`, and devices
      store nothing but their personal part and what it declares in `keeps`.
    - The data of devices that are kept out of training leave no trace in the shared part.

    Args:
        method: the name of the method or its import path, as in `personalize.method`.
        settings: further settings of the run, by dotted key.
        workers: the number of worker processes that are compared with none; 1: none are.
        folder: a folder for files, by default a temporary one.

    Raises:
        AssertionError: a law is broken.
    """
    _check_defaults(method)
    values = with_values(_ROUNDS, {"personalize.method": method, **(settings or {})})
    _check_exchange(_built(values))
    _check_unseen(values)
    if folder is not None:
        _check_repeats(_built(values), folder, workers)
        return
    with TemporaryDirectory() as temporary:
        _check_repeats(_built(values), Path(temporary), workers)


def _built(values: Mapping[str, Any]) -> Built:
    return build(config_of(dict(values)), Path())


def _check_defaults(method: str) -> None:
    for name, parameter in registry.find(method).hyperparameters.items():
        if parameter.default is inspect.Parameter.empty:
            raise AssertionError(f"Every hyperparameter has a default: `{name}` of `{method}` has none.")


def _check_repeats(built: Built, folder: Path, workers: int) -> None:
    whole = _run(built, folder / "whole")
    check_same(_run(built, folder / "again"), whole, "A run gives the same bits again")
    with contextlib.suppress(_Stopped):
        _run(built, folder / "resumed", watch=_stop)
        raise AssertionError("A run can be stopped: it has no round to be stopped after.")
    resumed = _run(built, folder / "resumed", resume=True)
    check_same(resumed, whole, "A run that was stopped and resumed gives the same bits")
    if workers > 1:
        parallel = _run(built, folder / "workers", workers=workers)
        check_same(parallel, whole, "Worker processes give the same bits")


def _run(built: Built, out: Path, **options: Any) -> dict[str, bytes]:
    pipeline(built.task, built.personalization, built.plan, out=out, **options)
    return content_of(out)


class _Stopped(Exception):
    """The run was stopped."""


def _stop(line: Mapping[str, Any], done: int, total: int) -> None:
    if 2 * done >= total:
        raise _Stopped


def _check_unseen(values: Mapping[str, Any]) -> None:
    built = _built(with_values(values, {"evaluate.unseen": _UNSEEN}))
    noise = {device: 5.0 for device in built.task.devices.ids if is_unseen(device, _UNSEEN)}
    found = [
        pipeline(task, built.personalization, built.plan).shared
        for task in (small_task(), small_task(small_devices(noise=noise)))
    ]
    check_same(found[1], found[0], "The data of unseen devices leave no trace in the shared part")


@dataclass
class _Listening:
    """An executor that notes every order with its answer, each change by itself."""

    inner: SerialExecutor
    exchanged: list[tuple[Order, Reply | Failure]]

    def ask(self, orders: Iterable[Order]) -> Iterator[Reply | Tally | Failure]:
        """Carry out the orders, each as a single one."""
        asked = {order.device: order for order in orders}
        for answer in self.inner.ask(replace(order, single=True) for order in asked.values()):
            assert not isinstance(answer, Tally), "Single orders are in no tally."
            self.exchanged.append((asked[answer.device], answer))
            yield answer

    def __enter__(self) -> "_Listening":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    def devices(self) -> Sequence[str]:
        """Return the task's devices."""
        return self.inner.devices()

    def close(self, label: str, counted: Sequence[str], asked: Sequence[str]) -> None:
        """End a round."""
        self.inner.close(label, counted, asked)

    def restore(self, label: str) -> None:
        """Go back to the best round."""
        self.inner.restore(label)


def _check_exchange(built: Built) -> None:
    """Raise if something is sent or stored that neither the partition nor the method declares."""
    task, own, plan = built.task, built.personalization, built.plan
    store, seed = MemoryStore(), 1
    inner = local_executor(task, own, plan, store, seed=seed)
    assert isinstance(inner, SerialExecutor)
    listening = _Listening(inner, [])
    Pipeline(task, own, plan, seed=seed, executor=listening, journal=MemoryJournal(store)).run()
    training, partition = plan.training(Stage.PERSONALIZED), own.partition
    parts = partition.of(build_model(task, own, seed=seed))
    sent, kept = set(parts.shared), set(parts.personal)
    if training is not None:
        sent |= sent_by(training.method.local, partition, parts.shared).keys()
        kept |= kept_by(training.method.local, partition, parts).keys()
    for order, answer in listening.exchanged:
        if isinstance(answer, Failure):
            raise AssertionError(f"A device can train: device {answer.device!r} failed: {answer.reason}")
        allowed = sent if isinstance(order.work, Update) else set(parts.shared)
        if order.stage is not Stage.PRETRAINED and set(order.shared) != allowed:
            raise AssertionError("An order has the shared part and what the method declares in `sends`.")
        wanted = shapes_of(order.shared) if isinstance(order.work, Update) else None
        if wanted != (None if answer.change is None else shapes_of(answer.change)):
            raise AssertionError("A reply has a change of what was sent, to an update alone.")
    for device in task.devices.ids:
        if unknown := sorted((store.load(device) or {}).keys() - kept):
            raise AssertionError(f"A device stores only what is declared in `keeps`, not `{unknown[0]}`.")
