"""The `config.toml` of a run that was started in Python: writing it, and reading its partition back.

It contains every setting that a config can express. The task is missing, and functions are given by their
import paths. So the report can be written from the folder, but the run can only be resumed in Python.
"""

import platform
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from typing import Any

from torch import nn

from partita.config.sections import settings_of
from partita.errors import ConfigError
from partita.methods import registry
from partita.methods.declared import LocalFn, kind_of
from partita.methods.sgd import SGD
from partita.partition import Partition, Personalization
from partita.partition.selection import exactly
from partita.partition.tensors import tensors_of
from partita.server import registry as servers
from partita.server.schedules import Exponential, Linear, constant
from partita.training.plan import Plan, Training

PYTHON = "python"
"""The `task.kind` of a task that was created in Python."""
ORIGIN = "origin"
"""The key under `made_with` that marks a run whose other settings are objects from Python too."""
_SPLIT, _BY_NAMES = "partition", "by names"
"""The key and the value under `made_with` of a partition that tensor names define completely."""
_SCHEDULES = {constant: "constant", Linear: "linear", Exponential: "exponential"}


def recorded_values(own: Personalization, plan: Plan, *, seed: int, name: str) -> dict[str, Any]:
    """Return the values of the `config.toml` of a run that was started in Python."""
    values: dict[str, Any] = {
        "name": name,
        "seed": seed,
        **_settings(plan),
        "task": {"kind": PYTHON},
        "partition": _partition_values(own),
        "pretrain": _training_values(plan.pretrain),
        "personalize": _training_values(plan.personalize),
        "finetune": {"epochs": 0},
        "evaluate": _settings(plan.evaluate),
    }
    values["personalize"]["method"] = _method_name(plan.personalize) if plan.personalize else registry.DEFAULT
    values["personalize"] |= _hyperparameters(plan.personalize)
    if plan.finetune:
        values["finetune"] = _settings(plan.finetune) | {
            "optimizer": _optimizer_name(plan.finetune.optimizer)
        }
    versions = {package: metadata.version(package) for package in ("partita", "torch", "numpy")}
    is_plain = own.partition.is_plain and not (own.penalty or own.start or own.by_device)
    split = {_SPLIT: _BY_NAMES if is_plain else "in Python"}
    values["made_with"] = {ORIGIN: PYTHON, **split, "python": platform.python_version(), **versions}
    return values


def is_from_python(values: Mapping[str, Any]) -> bool:
    """Return whether the values of a `config.toml` are those of a run that was started in Python."""
    return values.get("made_with", {}).get(ORIGIN) == PYTHON


def has_task_from_python(values: Mapping[str, Any]) -> bool:
    """Return whether the values of a `config.toml` have a task that no file has."""
    return values.get("task", {}).get("kind") == PYTHON


def recorded_partition(values: Mapping[str, Any], model: nn.Module) -> Partition:
    """Return the partition of a run that was started in Python, by the names of its tensors.

    Raises:
        ConfigError: tensor names do not define it completely.
    """
    recorded = values["partition"]
    if values["made_with"][_SPLIT] != _BY_NAMES:
        raise ConfigError(
            "The run's folder does not contain its whole partition: pass it to `partita.open` as `partition`."
        )
    state = tensors_of(model)
    # A recorded name stands for all names of its tensor.
    part_of = {
        id(state[name]): part for part in ("personal", "frozen") for name in recorded[part] if name in state
    }
    personal, shared, frozen = (
        exactly(name for name, tensor in state.items() if part_of.get(id(tensor), "shared") == part)
        for part in ("personal", "shared", "frozen")
    )
    return Partition(model, personal=personal, shared=shared, frozen=frozen)


def recorded_update(values: Mapping[str, Any]) -> LocalFn | None:
    """Return the update of a run that was started in Python, None where it is none or its code is missing."""
    recorded = values["personalize"]
    method = registry.find_or_none(recorded["method"]) if recorded["rounds"] else None
    if method is None:
        return None
    options = {name: recorded[name] for name in method.hyperparameters if name in recorded}
    return partial(method.update, **options)


def _partition_values(own: Personalization) -> dict[str, Any]:
    names = {part: list(own.partition.names(part)) for part in ("personal", "frozen")}
    return {**names, **_settings(own.regularization)}


def _training_values(training: Training | None) -> dict[str, Any]:
    if training is None:
        return {"rounds": 0, "server_optimizer": servers.DEFAULT}
    kind = training.schedule if training.schedule is constant else type(training.schedule)
    schedule = {"schedule": _SCHEDULES[kind]} if kind in _SCHEDULES else {}
    path = _path(type(training.server))
    names = {own: name for name, own in servers.PATHS.items()}
    server = {f"server_{name}": value for name, value in _settings(training.server).items()}
    return {
        **_settings(training),
        **_settings(training.method),
        **schedule,
        "optimizer": _optimizer_name(training.method.optimizer),
        "server_optimizer": names.get(path, path),
        **server,
    }


def _settings(instance: Any) -> dict[str, Any]:
    """Return the settings of a dataclass that are plain values, without those that are None."""
    found = {name: getattr(instance, name) for name in settings_of(type(instance))}
    return {name: value for name, value in found.items() if value is not None}


def _method_name(training: Training) -> str:
    """Return the name of a method that fixes no settings, else the import path of its update."""
    kind = kind_of(training.method.local)
    for name, method in registry.every().items():
        if method.update is kind and not (method.fixed or method.personal):
            return name
    return _path(kind)


def _hyperparameters(training: Training | None) -> dict[str, Any]:
    """Return the hyperparameters that an update was given and that are plain values."""
    local = training.method.local if training else None
    given = local.keywords if isinstance(local, partial) else {}
    return {name: value for name, value in given.items() if isinstance(value, bool | int | float | str)}


def _optimizer_name(optimizer: Any) -> str:
    return "sgd" if optimizer is SGD else _path(optimizer)


def _path(thing: Any) -> str:
    """Return the import path of a class or function."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}:{named.__qualname__}"
