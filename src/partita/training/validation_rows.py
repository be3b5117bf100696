"""The check, before a run, that there are validation rows where its plan needs them."""

import contextlib
from collections.abc import Iterable

from partita.data.examples import examples_of
from partita.errors import ConfigError
from partita.protocol import DeviceId
from partita.tasks.task import Task
from partita.training.plan import Plan

_REMEDY = "give devices a split `validation`; with a table, set `task.validation`, for example to 0.2."


def check_validation(plan: Plan, task: Task, *, seed: int) -> None:
    """Raise if a plan needs validation rows and none of the devices that it needs them of has any.

    Early stopping needs those of the devices that are evaluated during training.
    """
    evaluate, devices = plan.evaluate, task.devices.ids
    if (evaluate.choose or evaluate.split == "validation") and not _has_rows(task, devices):
        raise ConfigError(
            f"`evaluate.choose` and `evaluate.split` need validation rows, and no device has any: {_REMEDY}"
        )
    patient = [f"`{name}.patience`" for name, training in plan.trainings.items() if training.patience]
    if not patient:
        return
    seen, _ = evaluate.divide(devices)
    evaluated = evaluate.evaluated(seen, seed=seed)
    measured = evaluate.sampled(evaluated)
    if not _has_rows(task, (evaluated[at] for at in measured)):
        number = f"none of the {len(measured)} devices that are evaluated during training has any"
        raise ConfigError(f"{patient[0]} needs validation rows, and {number}: {_REMEDY}")


def _has_rows(task: Task, devices: Iterable[DeviceId]) -> bool:
    """Return whether any device has validation rows."""
    for device in devices:
        with contextlib.suppress(Exception):  # A visit of this device will raise it again.
            splits = task.devices[device]
            if "validation" in splits and len(examples_of(splits["validation"])):
                return True
    return False
