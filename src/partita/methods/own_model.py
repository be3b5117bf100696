"""A device's own model as its method declares it, where no update runs: evaluated, fine-tuned or exported."""

from collections.abc import Callable
from itertools import islice

import torch
from torch import nn

from partita.data.examples import examples_of
from partita.methods.carried import kept_by
from partita.methods.declared import LocalFn, OwnExamples, declared
from partita.params import Params, copy_into
from partita.partition import Partition, Personalization
from partita.tasks.build import build_model, one_thread, seeded
from partita.tasks.task import Task

_TRIED_DEVICES = 20
"""Devices looked at for one with training examples, to try how a device predicts."""


def begin(
    local: LocalFn | None,
    model: nn.Module,
    partition: Partition,
    kept: Params,
    to: Callable[[Params], Params] = dict,
) -> None:
    """Give a device's own model the values that its method declares in `begins`, in place.

    Args:
        local: the update; None where there is none.
        model: the model, with both parts loaded.
        partition: how the model is split.
        kept: everything that the device has kept. Without the tensors that the update declares, it comes from
            fine-tuning, which has started from these values already.
        to: moves tensors to where the model is.

    Raises:
        ValueError: the update declares a value for a tensor that the model does not have.
    """
    begins = None if local is None else declared(local, "begins")
    if local is None or begins is None:
        return
    parts = partition.of(model)
    first = kept_by(local, partition, parts)
    if kept and not kept.keys() >= first.keys():
        return
    own = {name: kept.get(name, tensor) for name, tensor in first.items()}
    with torch.no_grad():
        values = begins(parts.shared, parts.personal, to(own))
        tensors = {**parts.shared, **parts.personal}
        for name in values:
            if name not in tensors:
                raise ValueError(f"A method cannot begin with {name!r}: neither part has that tensor.")
        copy_into({name: tensors[name] for name in values}, values)


def predictor(local: LocalFn | None, model: nn.Module, examples: Callable[[], OwnExamples]) -> nn.Module:
    """Return the module that predicts for a device: the model itself, unless the update declares `predicts`.

    Args:
        local: the update; None where there is none.
        model: the device's own model, which is put in eval mode where the update declares how it predicts.
        examples: returns the device's own examples.
    """
    predicts = None if local is None else declared(local, "predicts")
    if predicts is None:
        return model
    with torch.no_grad():
        return predicts(model.eval(), examples())


def check_predictor(local: LocalFn | None, task: Task, own: Personalization, *, seed: int) -> None:
    """Try once how a device predicts, where the update declares it: errors come before any training.

    Raises:
        Exception: whatever the update raises for this task and this model.
    """
    if local is None or declared(local, "predicts") is None:
        return
    for device in islice(task.devices.ids, _TRIED_DEVICES):
        examples = OwnExamples(examples_of(task.devices[device].get("train", ())), 1, task.predict)
        if len(examples):
            with one_thread(), seeded(seed), torch.no_grad():
                model = predictor(local, build_model(task, own.on(device), seed=seed), lambda e=examples: e)
                task.predict(model.eval(), examples.batch_at(torch.arange(1)))
            return
