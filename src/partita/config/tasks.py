"""From a config's task and model to a `Task`: its data, its model and the file to begin from."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from partita.config.imports import MODELS, TASKS, call, load, own_code, taken, takes
from partita.config.reading import check_type
from partita.config.schema import Config
from partita.config.sections import in_section
from partita.errors import ConfigError
from partita.models.start import LoadReport, load_start
from partita.params import Params, from_bytes
from partita.protocol import derive_seed
from partita.tasks.build import seeded
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation


def build_task(config: Config, folder: Path) -> tuple[Task, LoadReport | None]:
    """Return the task with the model that the config names, and what became of the file to begin from."""
    function = load("task.kind", config.task.kind, TASKS)
    options = {**config.task.options, **{key: str(path) for key, path in data_files(config, folder).items()}}
    share = options.pop("validation", 0.0) if not takes("validation", function) else 0.0
    with seeded(derive_seed(config.seed, "task")):
        task = call("task", function, options)
    if not isinstance(task, Task):
        raise ConfigError(f"`task.kind` = {config.task.kind!r} must return a Task, got {task!r}.")
    if share:
        with in_section("task"):
            task = hold_out_validation(task, check_type(share, float, "task.validation"))
    if config.model.name:
        model = load("model.name", config.model.name, MODELS)
        options = {**taken(model, task.model_options), **config.model.options}
        for name, value in task.model_options.items():
            if isinstance(value, int) and isinstance(options.get(name), int) and options[name] < value:
                raise ConfigError(
                    f"`model.{name}` must be at least {value} for this task, got {options[name]}."
                )
        built = call("model", model, options)
        if not isinstance(built, nn.Module):
            raise ConfigError(f"`model.name` = {config.model.name!r} must return a module, got {built!r}.")
        task = task.with_model(partial(model, **options))
    elif config.model.options:
        raise ConfigError(f"The keys {', '.join(config.model.options)} of [model] need `model.name`.")
    if not config.model.start:
        if config.model.start_names:
            raise ConfigError("`model.start_names` needs a file to begin from, `model.start`.")
        return task, None
    return _started(task, _tensors(config.model.start, folder), config.model.start_names)


def data_files(config: Config, folder: Path) -> dict[str, Path]:
    """Return the files that a task of ours reads, by key, from beside the config or from $PARTITA_DATA."""
    sought = sought_files(config, folder)
    for key, (name, places) in sought.items():
        if not any(place.exists() for place in places):
            looked = " or ".join(f"`{place.parent.resolve()}`" for place in places)
            hint = "" if len(places) > 1 else " The folder $PARTITA_DATA would be looked in as well."
            raise ConfigError(f"`task.{key}` = {name!r} is not in {looked}.{hint}")
    return {key: next(p for p in places if p.exists()) for key, (_, places) in sought.items()}


def sought_files(config: Config, folder: Path) -> dict[str, tuple[str, list[Path]]]:
    """Return the names of the files that a task of ours reads, by key, and where each may be."""
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


def _tensors(name: str, folder: Path) -> Params:
    path = folder / name
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"Cannot read `model.start`, `{path}`: {error.strerror}.") from None
    except SafetensorError as error:
        raise ConfigError(f"`model.start`, `{path}`, is not a safetensors file: {error}.") from None


def _started(task: Task, tensors: Params, names: Mapping[str, str]) -> tuple[Task, LoadReport]:
    """Return the task with a model that begins from a file's tensors, and what became of them."""

    def build_started() -> nn.Module:
        model = task.model()
        load_start(model, tensors, names)
        return model

    with own_code("`model.start`"):
        account = load_start(task.model(), tensors, names)
    return task.with_model(build_started), account
