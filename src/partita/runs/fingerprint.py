"""A run's fingerprint: refuses to resume with other settings."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from partita.device.settings import Computing
from partita.executors.settings import SERIAL
from partita.partition import PARTS, Personalization
from partita.protocol import Stage
from partita.tasks.task import Task
from partita.training.plan import Plan


def fingerprint_of(
    task: Task, own: Personalization, plan: Plan, *, seed: int, computing: Computing = SERIAL
) -> dict[str, str]:
    """Return the settings that must not change on resume, as strings by name."""
    regularization = own.regularization
    return {
        "seed": str(seed),
        **_task_parts(task),
        "partition": _digest(
            *(f"{part}: {dict(own.partition.shapes(part))}" for part in PARTS),
            *_sizes(own, task),
            *(text_of(value) for value in (own.penalty, regularization.dropout)),
            *([f"l2 {regularization.l2} to {regularization.l2_to}"] if regularization.l2 else []),
        ),
        "pretrain": text_of(plan.training(Stage.PRETRAINED)),
        "personalize": text_of(plan.training(Stage.PERSONALIZED)),
        "finetune": text_of(plan.finetune),
        "evaluate": text_of(plan.evaluate),
        # Defaults do not count, so that older runs can be resumed.
        **({"precision": computing.precision} if computing.precision != SERIAL.precision else {}),
        **({} if computing.reuse else {"reuse": "false"}),
    }


def task_fingerprint(task: Task, model: nn.Module) -> dict[str, str]:
    """Return the parts of a task that must not change when a study of it is resumed, as strings by name."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {**_task_parts(task), "parameters": _digest(str(shapes))}


def _task_parts(task: Task) -> dict[str, str]:
    return {
        "devices": f"{len(task.devices)} devices, {task.devices.ids.digest()}",
        "metrics": ", ".join(task.metrics),
        "derived": _digest(json.dumps(dict(task.derived), sort_keys=True)),
    }


def _sizes(own: Personalization, task: Task) -> Iterator[str]:
    """Yield the size of every device's personal part, and of a smaller shared part, where they differ."""
    if own.by_device is None:
        return
    for device in task.devices.ids:
        kind = own.on(device)
        count = kind.partition.count
        yield (
            str(count("personal")) if own.has_whole_shared(kind) else f"{count('personal')} {count('shared')}"
        )


def text_of(value: Any) -> str:
    """Return a string that is the same in every process: functions by name, dataclasses by their fields.

    Fields at their defaults do not count, so that a version with more of them can resume a run.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        defaults = {field.name: _default(field) for field in dataclasses.fields(value)}
        given = {name: own for name, own in fields.items() if text_of(own) != text_of(defaults[name])}
        return text_of(partial(type(value), **given))
    if isinstance(value, partial):
        settings = [
            *map(text_of, value.args),
            *(f"{name}={text_of(v)}" for name, v in value.keywords.items()),
        ]
        return f"{text_of(value.func)}({', '.join(settings)})"
    if callable(value) or type(value).__repr__ is object.__repr__:
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return repr(value)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, `MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
