"""The laws of an executor: every order has its answer, and a run has the bits of one in a single process."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from partita.device.store import DiskStore
from partita.executors.serial import SerialExecutor
from partita.mean import WeightedMean
from partita.methods.fedalt import FedAlt
from partita.methods.fedavg import FedAvg
from partita.methods.method import Finetuning
from partita.models.parts import named_partition
from partita.params import cloned, digest_of
from partita.partition import Personalization
from partita.protocol import DeviceId, Executor, Failure, Order, Reply, Stage, Start, Tally
from partita.runs.memory import MemoryJournal
from partita.studies.local import local_executor
from partita.tasks.build import build_model
from partita.tasks.task import Task
from partita.testing.bits import check_same
from partita.testing.small import SmallNet, small_devices, small_task
from partita.training.pipeline import Pipeline
from partita.training.plan import Plan, Training

ExecutorFn = Callable[[SerialExecutor, DiskStore], Executor]
"""Returns an executor for the run of a serial one: its `task` and `make_visitor`, with the same store."""

_SEED = 1
_METHOD = FedAlt(shared_lr=0.1, batch_size=4)
_PLAN = Plan(
    pretrain=Training(method=FedAvg(shared_lr=0.1, batch_size=4), rounds=1, devices_per_round=3),
    personalize=Training(method=_METHOD, rounds=3, devices_per_round=4),
    finetune=Finetuning(personal_lr=0.1, epochs=1, batch_size=4),
)


def check_executor(make: ExecutorFn) -> None:
    """Raise unless an executor keeps the laws, with a small task in temporary folders.

    - Every order has exactly one answer; a device that fails has a reason, and the others are as without it.
    - The change of an order that asks for it singly comes with its reply, and is in no tally.
    - Replies and tallies together have the same sum as the replies of one process, bit for bit.
    - What a device has saved is kept only if it is counted when the round is closed.
    - A whole run of three stages has the bits of a run in one process.

    Raises:
        AssertionError: a law is broken.
    """
    for noise in ({}, {"d2": float("nan")}):
        task = small_task(small_devices(noise=noise))
        for is_single in (False, True):
            serial, own = (_round(task, each, is_single=is_single) for each in (_serial, make))
            check_same(own, serial, "A round has the sums, metrics and personal parts of one process")
    serial, own = (_run(small_task(), each) for each in (_serial, make))
    check_same(own, serial, "A run has the bits of a run in one process")


def _serial(serial: SerialExecutor, store: DiskStore) -> Executor:
    return serial


def _made(task: Task, own: Personalization, make: ExecutorFn, folder: Path) -> tuple[Executor, DiskStore]:
    store = DiskStore(folder / "personal")
    serial = local_executor(task, own, _PLAN, store, seed=_SEED)
    assert isinstance(serial, SerialExecutor)
    return make(serial, store), store


def _round(task: Task, make: ExecutorFn, *, is_single: bool) -> dict[str, Any]:
    """Return the sums, the metrics and the personal parts after one round; one device is not counted."""
    own = named_partition(SmallNet(), "output")
    devices = list(task.devices.ids)[:5]
    orders = [replace(order, single=is_single) for order in _orders(task, own, devices)]
    with TemporaryDirectory() as folder:
        executor, store = _made(task, own, make, Path(folder))
        with executor:
            found = _answers(orders, executor)
            heard = [device for device in devices if f"metrics of {device}" in found]
            executor.close(orders[0].label, heard[1:], devices)
        kept = {device: store.load(device) for device in devices}
    if kept[heard[0]] is not None:
        raise AssertionError("A device that is not counted keeps nothing of the round: it does.")
    named = {f"{name} of {device}": t for device, part in kept.items() for name, t in (part or {}).items()}
    return {**found, **named}


def _orders(task: Task, own: Personalization, devices: Sequence[DeviceId]) -> list[Order]:
    """Return the orders of the first round of personalization."""
    parts = own.partition.of(build_model(task, own, seed=_SEED))
    shared, personal = (cloned(part) for part in (parts.shared, parts.personal))
    start = Start(digest=digest_of(personal), personal=personal, frozen=digest_of(parts.frozen))
    common = {
        "stage": Stage.PERSONALIZED,
        "round": 0,
        "work": _METHOD.update,
        "shared": shared,
        "start": start,
    }
    return [Order(device=device, **common) for device in devices]


def _answers(orders: list[Order], executor: Executor) -> dict[str, Any]:
    """Return the sum of all changes, and the metrics or the reason of each device."""
    mean, found = WeightedMean(orders[0].shared), dict[str, Any]()
    single = {order.device for order in orders if order.single}
    added: list[str] = []
    for answer in executor.ask(orders):
        if isinstance(answer, Tally):
            if not single.isdisjoint(answer.devices):
                raise AssertionError("The change of a single order comes with its reply: it is in a tally.")
            mean.merge(answer.totals)
            added += answer.devices
            continue
        if {f"metrics of {answer.device}", f"reason of {answer.device}"} & found.keys():
            raise AssertionError(f"Every order has one answer: device {answer.device!r} has two.")
        if isinstance(answer, Failure):
            found[f"reason of {answer.device}"] = answer.reason
            continue
        found[f"metrics of {answer.device}"] = dict(answer.metrics["train"])
        added += _add(answer, mean)
    replied = [name.removeprefix("metrics of ") for name in found if name.startswith("metrics")]
    if len(found) != len(orders):
        raise AssertionError(f"Every order has one answer: {len(orders)} orders have {len(found)}.")
    if sorted(added) != sorted(replied):
        raise AssertionError("The change of every reply is in the reply or in one tally: it is not.")
    return {**found, **{f"sum of {name}": tensor for name, tensor in mean.value().items()}}


def _add(reply: Reply, mean: WeightedMean) -> list[str]:
    if reply.change is None:
        return []
    mean.add(reply.device, reply.change, reply.weight)
    return [reply.device]


def _run(task: Task, make: ExecutorFn) -> dict[str, Any]:
    """Return the shared part, the measurements and the personal parts of a whole run."""
    own = named_partition(SmallNet(), "output")
    with TemporaryDirectory() as folder:
        executor, store = _made(task, own, make, Path(folder))
        journal = MemoryJournal(store)
        with executor:
            Pipeline(task, own, _PLAN, seed=_SEED, executor=executor, journal=journal).run()
        kept = {device: store.load(device) or {} for device in task.devices.ids}
    shared = {f"shared {name}": t for name, t in journal.shared(Stage.PERSONALIZED).items()}
    personal = {f"{name} of {device}": t for device, part in kept.items() for name, t in part.items()}
    return {**shared, **personal, "measurements": journal.measurements.to_pylist()}
