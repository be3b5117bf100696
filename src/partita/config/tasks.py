"""From a config's task and model to a `Task`: data, model and initial weights."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from partita.config.loading import MODELS, TASKS, call, load, own_code, taken, takes
from partita.config.reading import check_type
from partita.config.schema import Config, ModelConfig
from partita.config.sections import in_section
from partita.errors import ConfigError
from partita.models.start import LoadReport, load_start
from partita.params import Params, from_bytes
from partita.protocol import derive_seed
from partita.tasks.build import seeded
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation


def build_task(config: Config, folder: Path) -> tuple[Task, LoadReport | None]:
    """Return the task with its model, and a report on the file of initial weights, if there is one.

    Args:
        config: the config.
        folder: the folder in which files that the config names are found.
    """
    task = _with_model(_build_task(config, folder), config.model)
    if config.model.start:
        return _with_start(task, _read_tensors(config.model.start, folder), config.model.start_names)
    if config.model.start_names:
        raise ConfigError("`model.start_names` needs a file with initial weights, `model.start`.")
    return task, None


def _build_task(config: Config, folder: Path) -> Task:
    """Return the task with its own model."""
    function = load("task.kind", config.task.kind, TASKS)
    options = {**config.task.options, **{key: str(path) for key, path in data_files(config, folder).items()}}
    share = options.pop("validation", 0.0) if not takes("validation", function) else 0.0
    with seeded(derive_seed(config.seed, "task")):
        task = call("task", function, options)
    if not isinstance(task, Task):
        raise ConfigError(f"`task.kind` = {config.task.kind!r} must return a Task, got {task!r}.")
    if not share:
        return task
    with in_section("task"):
        return hold_out_validation(task, check_type(share, float, "task.validation"))


def _with_model(task: Task, config: ModelConfig) -> Task:
    """Return the task with the model that the config names, if it names one."""
    if not config.name:
        if config.options:
            raise ConfigError(f"The keys {', '.join(config.options)} of [model] need `model.name`.")
        return task
    function = load("model.name", config.name, MODELS)
    options = {**taken(function, task.model_options), **config.options}
    for name, value in task.model_options.items():
        if isinstance(value, int) and isinstance(options.get(name), int) and options[name] < value:
            raise ConfigError(f"`model.{name}` must be at least {value} for this task, got {options[name]}.")
    model = call("model", function, options)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"`model.name` = {config.name!r} must return a module, got {model!r}.")
    return task.with_model(partial(function, **options))


def data_files(config: Config, folder: Path) -> dict[str, Path]:
    """Return the files that a built-in task reads, by key, from the config's folder or from $PARTITA_DATA."""
    files = named_files(config, folder)
    for key, (name, places) in files.items():
        if not any(place.exists() for place in places):
            looked = " or ".join(f"`{place.parent.resolve()}`" for place in places)
            hint = "" if len(places) > 1 else " Files are also found in the folder $PARTITA_DATA."
            raise ConfigError(f"`task.{key}` = {name!r} is not in {looked}.{hint}")
    return {key: next(p for p in places if p.exists()) for key, (_, places) in files.items()}


def named_files(config: Config, folder: Path) -> dict[str, tuple[str, list[Path]]]:
    """Return the names of the files that a built-in task reads, by key, and the paths where each may be."""
    if config.task.kind not in TASKS:
        return {}
    if config.task.options.get("data") == "":
        raise ConfigError("`task.data` must name a table, got ''.")
    folders = [folder, *(Path(place) for place in [os.environ.get("PARTITA_DATA")] if place)]
    given = {key: config.task.options.get(key) for key in ("data", "vocabulary", "tokenizer")}
    return {
        key: (name, [place / name for place in folders])
        for key, name in given.items()
        if isinstance(name, str) and name
    }


def _read_tensors(name: str, folder: Path) -> Params:
    path = folder / name
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read `model.start`, `{path}`: {error.strerror}.") from None
    except SafetensorError as error:
        raise ConfigError(f"`model.start`, `{path}`, is not a safetensors file: {error}.") from None


def _with_start(task: Task, tensors: Params, names: Mapping[str, str]) -> tuple[Task, LoadReport]:
    """Return the task with a model that starts from a file's tensors, and a report on them."""

    def build_model() -> nn.Module:
        model = task.model()
        load_start(model, tensors, names)
        return model

    with own_code("`model.start`"):
        report = load_start(task.model(), tensors, names)
    return task.with_model(build_model), report
