"""The laws of a task: data, model, loss and metrics repeat themselves, and a metric sees every example."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from partita.api.runs import pipeline
from partita.data.examples import Examples, examples_of, in_order
from partita.data.moving import CPU
from partita.methods.fedavg import FedAvg
from partita.partition import Partition
from partita.tasks.build import build_model, one_thread, seeded
from partita.tasks.leaves import have_same_bits, leaves_of
from partita.tasks.measure import measure
from partita.tasks.task import Task
from partita.testing.bits import check_same
from partita.training.plan import Evaluation, Plan, Training

_SEED = 1


def check_task(task: Task, *, devices: int = 3, trains: bool = True) -> None:
    """Raise unless a task keeps the laws, on its first devices.

    - The model is the same for the same seed.
    - A device's examples are the same each time, and the batch of some positions is too.
    - The loss is a finite scalar with a gradient, and repeats itself in eval mode.
    - Predictions and targets have one entry for each example.
    - Measuring changes no bit of the model, and gives the same values again.
    - A short run gives the same bits again.

    Args:
        task: the task.
        devices: the number of devices that are looked at.
        trains: whether to train for a round too.

    Raises:
        AssertionError: a law is broken.
    """
    _check_model(task)
    for device in islice(task.devices.ids, devices):
        for split in task.devices[device]:
            examples, again = (examples_of(task.devices[device][split]) for _ in range(2))
            if len(examples):
                where = f"device {device!r}, split `{split}`"
                _check_examples(examples, again, where)
                _check_measures(task, examples, where)
    if trains:
        _check_run(task)


def _check_model(task: Task) -> None:
    one, other = (dict(build_model(task, seed=_SEED).state_dict()) for _ in range(2))
    with one_thread(), seeded(_SEED):
        first = dict(task.model().state_dict())
    with one_thread(), seeded(_SEED):
        second = dict(task.model().state_dict())
    check_same(other, one, "The model is the same for the same seed")
    check_same(second, first, "The function that builds the model gives the same one for the same seed")


def _check_examples(examples: Examples, again: Examples, where: str) -> None:
    if len(examples) != len(again):
        raise AssertionError(f"A device has the same examples each time: {where} has not.")
    positions = torch.arange(min(len(examples), 5)).flip(0)
    batches = [list(leaves_of(each.batch_at(positions))) for each in (examples, examples, again)]
    if not all(have_same_bits(batch, batches[0]) for batch in batches[1:]):
        raise AssertionError(f"The batch of some positions is the same each time: in {where} it is not.")


def _check_measures(task: Task, examples: Examples, where: str) -> None:
    model = build_model(task, seed=_SEED).to(CPU)
    batch, size = next(in_order(examples, 8))
    with one_thread(), seeded(_SEED):
        loss = task.loss(model.train() if size > 1 else model.eval(), batch)
    if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.isfinite() and loss.requires_grad):
        raise AssertionError(f"The loss is a finite scalar with a gradient: in {where} it is {loss!r}.")
    with one_thread(), torch.no_grad():
        predictions, targets = task.predict(model.eval(), batch)
    for name, values in (("predictions", predictions), ("targets", targets)):
        if _count(values) != size:
            raise AssertionError(
                f"There is one entry for each example: {where} has {_count(values)} {name} for {size}."
            )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with one_thread():
        first, second = (measure(task, model, examples) for _ in range(2))
    check_same(dict(model.state_dict()), before, "Measuring changes no bit of the model")
    check_same(dict(second), dict(first), f"Measuring gives the same values again, in {where}")


def _count(values: Any) -> int:
    return len(values) if isinstance(values, Tensor | Sequence) else -1


def _check_run(task: Task) -> None:
    method = FedAvg(shared_lr=0.01, shared_steps=1, batch_size=4)
    plan = Plan(
        personalize=Training(method=method, rounds=1, devices_per_round=1), evaluate=Evaluation(devices=1)
    )
    found = [pipeline(task, Partition(task.model()), plan, progress=False).shared for _ in range(2)]
    check_same(found[1], found[0], "A short run gives the same bits again")
