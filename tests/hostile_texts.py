"""Names that a page, a table or a terminal must not take for anything but text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from compared import done, values
from partita import Task
from partita.config.reading import config_of
from partita.errors import CannotDo
from partita.methods.fedalt import METHOD
from partita.studies import run as runner
from small import affine_devices, affine_task, negative_error, square_error

MARKUP = """</script><script>window.ran=1</script>'"`><img src=x onerror="window.ran=1"><svg onload=window.ran=1>"""
"""Runs a script wherever it is taken for HTML: as text, in an attribute or inside a script element."""
TEMPLATE = "{{ 7*7 }}${window.ran=1}</textarea></title></style>[x](javascript:window.ran=1)"
FORMULA = '=HYPERLINK("http://x")|+1\n-2@\t\\input{x}%&#_^~${}'
HIDDEN = "\x00\x01\x07\x08\x1b[2J\ufffe\uffff\u202e\r\n"
HOSTILE = f"{MARKUP}{TEMPLATE}{HIDDEN}{FORMULA}"

IDS = [f"{prefix}{HOSTILE}" for prefix in ("=", "+", "-", "@", "\t", "\r")]

LIMIT = 50.0
"""Targets above it cannot be trained on."""

titled = dataclasses.replace(METHOD, title=f"Method {HOSTILE}")


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss with which the last device cannot train."""
    if model.training and batch[1].mean() > LIMIT:
        raise CannotDo(f"failed {HOSTILE}")
    return square_error(model, batch)


def task(ids: Sequence[str] = IDS, **changes: Any) -> Task:
    """Six devices with hostile ids, two metrics with hostile names, and a device that fails."""
    devices = dict(zip(ids, affine_devices(len(ids)).values(), strict=True))
    inputs, targets = devices[ids[-1]]["train"]
    devices[ids[-1]]["train"] = inputs, targets + 2 * LIMIT
    metrics = {f"metric {HOSTILE}": negative_error, f"={HOSTILE}": negative_error}
    return affine_task(**{"devices": devices, "metrics": metrics, "loss": loss, **changes})


def settings(*methods: str) -> dict[str, Any]:
    """The values of a run or a comparison of the task, with curves and unseen devices."""
    given = values(*methods, task={"kind": "hostile_texts:task"}, evaluate={"every": 1})
    given["personalize"] = {**given["personalize"], "devices_per_round": 6, "method": "hostile_texts:titled"}
    return {**given, "name": f"name {HOSTILE}".replace("/", "|")}


def hostile_run(folder: Path) -> Path:
    """A finished run in which every name is hostile."""
    given = {**settings(), "partition": {"personal": "output"}, "out": str(folder)}
    del given["compare"]
    given["finetune"] = {**given["finetune"], "baseline": True}
    runner.finish(runner.prepare(config_of(given), Path()))
    return folder


def hostile_comparison(folder: Path) -> Path:
    """A finished comparison in which every name is hostile."""
    done(folder, settings("finetune", "fedalt", "hostile_texts:titled"))
    return folder
