"""From a config's task and model to a `Task`: data, model and initial weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from partita.config.files import find_files
from partita.config.loading import MODELS, TASKS, call, check_call, load, own_code, taken, takes
from partita.config.overrides import DERIVED, OF_MODEL, PATH, PRETRAINED, START, TOKENIZER
from partita.config.reading import check_type
from partita.config.recording import PYTHON
from partita.config.schema import Config, ModelConfig
from partita.config.sections import in_section
from partita.data.options import UNSEEN
from partita.errors import ConfigError, raise_fault
from partita.models.hub import files_of
from partita.models.start import LoadReport, load_start
from partita.params import Params
from partita.protocol import derive_seed
from partita.runs.tensors import run_of, tensors_in
from partita.tasks.build import initial_model, seeded
from partita.tasks.derived import differing
from partita.tasks.task import Task
from partita.tasks.validation import hold_out_validation

_TOKENIZER = TOKENIZER.removeprefix("task.")
_GIVEN: ContextVar[Task | None] = ContextVar("given", default=None)
"""The task from Python that `given_task` provides."""


@contextmanager
def given_task(task: Task | None) -> Iterator[None]:
    """Build every config with `task.kind = "python"` with this task, in the block that follows."""
    token = _GIVEN.set(task)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def check_given(config: Config) -> None:
    """Raise if a config needs a task from Python and none is given."""
    if config.task.kind == PYTHON:
        task_from_python()


def task_from_python() -> Task:
    """Return the task from Python."""
    if (task := _GIVEN.get()) is None:
        raise ConfigError(
            f"`task.kind` = {PYTHON!r} is a task that was created in Python, and no file has it: resume in "
            "Python, with `resume=True`, and open runs with `partita.open(DIR, task=...)`."
        )
    return task


def build_task(config: Config, folder: Path) -> tuple[Task, LoadReport | None]:
    """Return the task with its model, and a report on the file of initial weights, if there is one.

    Args:
        config: the config.
        folder: the folder in which files that the config names are found.
    """
    files = find_files(config, folder)
    _check_unseen(files, config.evaluate.unseen)
    config = _with_found_model(config, files)
    task = _with_model(_build_task(config, files), config.model)
    if START in files:
        _check_derived(task, files[START])
        tensors = _read_tensors(files[START])
        return _with_start(task, tensors, config.model.start_names, seed=config.seed)
    if config.model.start_names:
        raise ConfigError("`model.start_names` needs a file with initial weights, `model.start`.")
    with own_code("The model"):
        initial_model(task, seed=config.seed)
    return task, None


def _build_task(config: Config, files: Mapping[str, Path]) -> Task:
    """Return the task with its own model."""
    function = task_from_python if config.task.kind == PYTHON else load("task.kind", config.task.kind, TASKS)
    found = {key.removeprefix("task."): str(path) for key, path in files.items() if key.startswith("task.")}
    options = {**config.task.options, **found}
    if UNSEEN in options:
        raise ConfigError(f"Unknown key `task.{UNSEEN}`. Did you mean `evaluate.{UNSEEN}`?")
    share = options.pop("validation", 0.0) if not takes("validation", function) else 0.0
    if config.evaluate.unseen:
        options |= taken(function, {UNSEEN: config.evaluate.unseen})
    with seeded(derive_seed(config.seed, "task")):
        task = call("task", function, options)
    if not isinstance(task, Task):
        raise ConfigError(f"`task.kind` = {config.task.kind!r} must return a Task, got {task!r}.")
    if not share:
        return task
    with in_section("task"):
        return hold_out_validation(task, check_type(share, float, "task.validation"))


def _with_found_model(config: Config, files: Mapping[str, Path]) -> Config:
    """Return the config with the folder of its pretrained model, and with the file of its tokenizer."""
    options, model = dict(config.task.options), config.model
    if PATH in files:
        model = replace(model, options={**model.options, "path": str(files[PATH])})
    if config.task.kind in TASKS and options.get(_TOKENIZER) == OF_MODEL:
        if PATH not in files:
            raise ConfigError(
                f"`{TOKENIZER}` = {OF_MODEL!r} is the tokenizer of a pretrained model: set `model.name` to "
                f"{PRETRAINED!r}, and `model.path`."
            )
        file = check_type(model.options.get("file", ""), str, "model.file")
        files_of(files[PATH], file)
        options[_TOKENIZER] = str(files[PATH] / file)
    return replace(config, task=replace(config.task, options=options), model=model)


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
        if isinstance(value, str) and options.get(name, value) != value:
            raise ConfigError(f"`model.{name}` must be {value!r} for this task, got {options[name]!r}.")
    what = check_call("model", function, options)
    return task.with_model(_NamedModel(config.name, partial(function, **options), what))


@dataclass(frozen=True, eq=False)
class _NamedModel:
    """Builds the model that a config names."""

    name: str
    plain_builder: Callable[[], nn.Module]
    """The function with its arguments."""
    what: str
    """The function in messages."""

    def __call__(self) -> nn.Module:
        with own_code(self.what):
            model = self.plain_builder()
        if not isinstance(model, nn.Module):
            raise ConfigError(f"`model.name` = {self.name!r} must return a module, got {model!r}.")
        return model


def _check_unseen(files: Mapping[str, Path], share: float) -> None:
    """Raise if weights or derived values come from a run that has seen devices which are unseen here.

    A larger share contains the devices of a smaller one.
    """
    for key in (START, DERIVED):
        run = run_of(files[key]) if key in files else None
        if run is not None and run.unseen_share < share:
            raise ConfigError(
                f"`{key}`, `{files[key]}`, comes from a run with `evaluate.unseen` = {run.unseen_share}, "
                f"which has seen devices that must be unseen with `evaluate.unseen` = {share}: use a run "
                "with the same share."
            )


def _check_derived(task: Task, start: Path) -> None:
    """Raise if a model comes from a run whose derived values were others than the task's."""
    run = run_of(start)
    if run is None or not run.derived:
        return
    if names := differing(task.derived, run.derived):
        raise ConfigError(
            f"`model.start`, `{start}`, was trained with another `{names[0]}` than this task's: set "
            f"`task.derived` to `{run.derived_file.resolve()}`."
        )


def _read_tensors(path: Path) -> Params:
    try:
        return tensors_in(path)
    except OSError as error:
        raise_fault(error, path)
        raise ConfigError(f"Cannot read `model.start`, `{path}`: {error.strerror}.") from None
    except SafetensorError as error:
        raise ConfigError(f"`model.start`, `{path}`, is not a safetensors file: {error}.") from None


def _with_start(
    task: Task, tensors: Params, names: Mapping[str, str], *, seed: int
) -> tuple[Task, LoadReport]:
    """Return the task with a model that starts from a file's tensors, and a report on them."""
    start = _StartedModel(task.model, tensors, names)
    started = task.with_model(start)
    with own_code("`model.start`"):
        initial_model(started, seed=seed)
    return started, start.reports[0]


@dataclass(frozen=True, eq=False)
class _StartedModel:
    """Builds a model that starts from a file's tensors."""

    plain_builder: Callable[[], nn.Module]
    """Builds the model with its own initial weights."""
    tensors: Params
    names: Mapping[str, str]
    reports: list[LoadReport] = field(default_factory=list)
    """A report on the file for every model that was built."""

    def __call__(self) -> nn.Module:
        model = self.plain_builder()
        self.reports.append(load_start(model, self.tensors, self.names))
        return model
