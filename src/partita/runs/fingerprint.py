"""What makes a run the run it is, so that another one is not mistaken for its continuation."""

import dataclasses
import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from partita.partition import Partition
from partita.partition.selection import PARTS
from partita.protocol import Stage
from partita.tasks.task import Task
from partita.training.plan import Plan


def identity_of(task: Task, partition: Partition, plan: Plan, *, seed: int) -> dict[str, str]:
    """Return a text for each thing that a resumed run must have in common with its beginning."""
    return {
        "seed": str(seed),
        "devices": f"{len(task.devices)} devices, {task.devices.ids.digest()}",
        "metrics": ", ".join(task.metrics),
        "partition": _digest(
            *(f"{part}: {dict(partition.shapes(part))}" for part in PARTS),
            *_sizes(partition, task),
            *(_text(value) for value in (partition.penalty, partition.dropout)),
            *([f"l2 {partition.l2} to {partition.l2_to}"] if partition.l2 else []),
        ),
        "pretrain": _text(plan.training(Stage.PRETRAINED)),
        "personalize": _text(plan.training(Stage.PERSONALISED)),
        "finetune": _text(plan.finetune),
        "evaluate": _text(plan.evaluate),
    }


def _sizes(partition: Partition, task: Task) -> Iterator[str]:
    """Yield the size of every device's personal part, where they differ."""
    if partition.by_device is not None:
        yield from (str(partition.on(device).count("personal")) for device in task.devices.ids)


def _text(value: Any) -> str:
    """Return a text that is the same in another process: functions by their names, values by their fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _text(partial(type(value), **fields))
    if isinstance(value, partial):
        settings = [*map(_text, value.args), *(f"{name}={_text(v)}" for name, v in value.keywords.items())]
        return f"{_text(value.func)}({', '.join(settings)})"
    if callable(value) or type(value).__repr__ is object.__repr__:
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return repr(value)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
