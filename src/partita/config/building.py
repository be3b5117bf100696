"""From a config to the objects of a run: a task, a partition, a plan and watchers."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import nn

from partita.config.loading import OPTIMIZERS, call, load, own_code, taken
from partita.config.partitions import build_partition, frozen_patterns
from partita.config.schema import (
    SERVER,
    Config,
    FinetuneConfig,
    PartitionConfig,
    PersonalizeConfig,
    PretrainConfig,
    ReportConfig,
    method_options,
    server_options,
)
from partita.config.sections import create, in_section
from partita.config.tasks import build_task
from partita.device.accelerators import check_available
from partita.errors import ConfigError, did_you_mean
from partita.executors.settings import Execution
from partita.methods import registry
from partita.methods.carried import Carried, carries, kept_by, make_update, sent_by
from partita.methods.declared import LACKS, LocalFn, declared
from partita.methods.descent import OptimizerFn, Steps
from partita.methods.method import Finetuning, Method
from partita.methods.own_model import check_predictor
from partita.models.start import LoadReport
from partita.partition import Personalization
from partita.progress.tensorboard import check_tensorboard
from partita.progress.watchers import WatcherFactory
from partita.protocol import Stage, check_number
from partita.server import registry as servers
from partita.server.optimizers import ServerOptimizer
from partita.server.schedules import Exponential, Linear, Schedule, constant
from partita.tasks.build import build_model, initial_model, split_by_stage
from partita.tasks.check import check_task
from partita.tasks.task import Task
from partita.training.plan import Plan, Training
from partita.training.validation_rows import check_validation

Choice = TypeVar("Choice")
_NO_METHOD = (
    "`method` must be a name or the import path of an update of `personal` and `shared` steps, such as "
    "'partita:LocalAlt', got {!r}: {}."
)


@dataclass(frozen=True)
class Built:
    """The objects of a run."""

    task: Task
    personalization: Personalization
    plan: Plan
    start: LoadReport | None
    """The report on the file of initial weights, if there is one."""
    execution: Execution
    """How visits are carried out."""
    watchers: Mapping[str, WatcherFactory]
    """The functions that create the watchers, by import path."""


def build(config: Config, folder: Path) -> Built:
    """Return the objects of a run; files that the config names are found in `folder`.

    Raises:
        ConfigError: a value cannot be used.
    """
    built = assemble(config, folder)
    check_plan(built, seed=config.seed)
    check_data(built, seed=config.seed)
    return built


def assemble(config: Config, folder: Path) -> Built:
    """Return the objects of a run, before the checks that need all of its devices.

    Raises:
        ConfigError: a value cannot be used.
    """
    watchers = build_watchers(config.report)
    execution = build_execution(config)
    task, start = build_task(config, folder)
    with own_code("The model"):
        model = initial_model(task, seed=config.seed)
    follows = registry.find(config.personalize.method).follows
    own = build_partition(config.partition, model, follows=follows)
    plan = build_plan(config)
    if config.finetune.baseline:
        frozen = frozen_patterns(config.partition, model)
        build_partition(PartitionConfig(personal="full", frozen=frozen), model)
    if not own.partition.names("personal"):
        plan = replace(plan, finetune=None)
    return Built(task, own, plan, start, execution, watchers)


def check_plan(built: Built, *, seed: int) -> None:
    """Raise if the plan, the partition or the method cannot be used with these devices and this model."""
    task, own, plan = built.task, built.personalization, built.plan
    with own_code("`partition.adapter_width`"):
        own.kinds(task.devices.ids)
    with own_code("The task"):
        plan.check(task.devices.ids)
        split_by_stage(task, own, seed=seed, pretrains=plan.training(Stage.PRETRAINED) is not None)
    with own_code("`personalize.method`"):
        _check_declared(plan, own, task, seed=seed)


def check_data(built: Built, *, seed: int) -> None:
    """Raise if the loss, the predictions or the metrics do not work on the data of the first device."""
    with own_code("The task"):
        skips = built.execution.on_error == "skip"
        check_task(built.task, built.personalization, seed=seed, skips=skips)
        check_validation(built.plan, built.task, seed=seed)


def build_execution(config: Config) -> Execution:
    """Return how the visits of a run are carried out, after checking the values."""
    try:
        return create(Execution, config)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def check_machine(config: Config) -> None:
    """Raise if this machine cannot compute as a config says; one that only reads results need not."""
    execution = build_execution(config)
    try:
        check_available(execution)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def build_plan(config: Config) -> Plan:
    """Return the stages of a run for a model with a personal part, after checking all of their values."""
    _check_baseline(config)
    with in_section("evaluate"):
        _check_choice(config)
    stages = {
        "pretrain": _training("pretrain", config.pretrain),
        "personalize": _training("personalize", config.personalize),
        "finetune": _finetuning(config.finetune),
        "evaluate": config.evaluate,
    }
    try:
        return create(Plan, config, **stages)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_declared(plan: Plan, own: Personalization, task: Task, *, seed: int) -> None:
    """Raise if a method declares tensors that it cannot keep or send, or predictions that it cannot make."""
    training = plan.training(Stage.PERSONALIZED)
    check_predictor(training and training.method.local, task, own, seed=seed)
    is_whole = all(own.has_whole_shared(kind) for kind, _, _ in own.kinds(task.devices.ids))
    if training and not is_whole and declared(training.method.local, "fills") is None:
        raise ConfigError(LACKS)
    if training and carries(training.method.local):
        parts = own.partition.of(build_model(task, own, seed=seed))
        kept_by(training.method.local, own.partition, parts)
        sent_by(training.method.local, own.partition, parts.shared)


def _check_baseline(config: Config) -> None:
    """Raise if the Finetune baseline, which runs last, cannot be run with these values."""
    lr = config.finetune.baseline_lr
    if lr is not None:
        try:
            check_number("`finetune.baseline_lr`", lr)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if config.finetune.baseline and not config.finetune.epochs:
        raise ConfigError("`finetune.baseline` needs `finetune.epochs` of at least 1, got 0.")


def _training(key: str, config: PretrainConfig | PersonalizeConfig) -> Training:
    with in_section(key):
        return create(
            Training,
            config,
            method=_method(key, config),
            schedule=_schedule(config),
            server=_server(key, config),
        )


def _method(key: str, config: PretrainConfig | PersonalizeConfig) -> Method:
    optimizer = _optimizer(key, config)
    if isinstance(config, PersonalizeConfig):
        return create(Method, config, local=_local(config), optimizer=optimizer)
    local = registry.find(registry.REFERENCE).update
    return create(Method, config, local=local, optimizer=optimizer, personal_epochs=0)


def _local(config: PersonalizeConfig) -> LocalFn:
    """Return the update of a config's method with its hyperparameters, after a trial with one step."""
    name, function = config.method, registry.find(config.method).update
    if options := method_options(config):
        function = partial(function, **options)
    steps = Steps(count=1, lr=0.0)
    try:
        carried = Carried(kept={}, sent={})
        callable_update = callable(make_update(function, personal=steps, shared=steps, carried=carried))
    except ValueError as error:  # The update refuses a value, and says which.
        raise ValueError(f"`method` = {name!r}: {error}") from error
    except Exception as error:
        raise ValueError(_NO_METHOD.format(name, f"{type(error).__name__}: {error}")) from error
    if not callable_update:
        raise ValueError(_NO_METHOD.format(name, "it does not return a function"))
    return function


def _finetuning(config: FinetuneConfig) -> Finetuning:
    with in_section("finetune"):
        return create(Finetuning, config, optimizer=_optimizer("finetune", config))


def _optimizer(key: str, config: PretrainConfig | PersonalizeConfig | FinetuneConfig) -> OptimizerFn:
    """Return the devices' optimizer with those of its settings that are not 0, after a trial step."""
    function = load(f"{key}.optimizer", config.optimizer, OPTIMIZERS)
    settings = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    given = {name: value for name, value in settings.items() if value}
    if config.optimizer == "adamw":
        given["weight_decay"] = config.weight_decay
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    try:
        optimizer = partial(function, **given)
        made = optimizer([{"params": [parameter], "lr": 0.1}])
        made.zero_grad()
        made.step()
    except Exception as error:
        raise ValueError(
            f"`optimizer` = {config.optimizer!r} with {given} cannot be used: {str(error).rstrip('.')}."
        ) from error
    return optimizer


def _schedule(config: PretrainConfig | PersonalizeConfig) -> Schedule:
    schedules: dict[str, Callable[[], Schedule]] = {
        "constant": lambda: constant,
        "linear": lambda: create(Linear, config),
        "exponential": lambda: create(Exponential, config),
    }
    return _choose("schedule", config.schedule, schedules)()


def _server(key: str, config: PretrainConfig | PersonalizeConfig) -> ServerOptimizer:
    """Return the server's optimizer, with every key that begins with `server_` as an argument."""
    function = load(f"{key}.server_optimizer", config.server_optimizer, servers.PATHS)
    arguments = {name.removeprefix(SERVER): value for name, value in server_options(config).items()}
    arguments |= taken(function, {"lr": config.server_lr, "momentum": config.server_momentum})
    server = call(key, function, arguments, prefix=SERVER)
    if not isinstance(server, ServerOptimizer):
        raise ValueError(
            f"`server_optimizer` = {config.server_optimizer!r} must return an object with `init` and `step`, "
            f"got {server!r}."
        )
    with own_code(f"`{key}.server_optimizer` in a trial step"):
        one = {"u": torch.zeros(1)}
        server.step(one, one, server.init(one))
    return server


def _choose(key: str, value: str, choices: dict[str, Choice]) -> Choice:
    if value not in choices:
        hint = did_you_mean(value, list(choices))
        raise ValueError(f"`{key}` must be one of {', '.join(choices)}, got {value!r}.{hint}")
    return choices[value]


def _check_choice(config: Config) -> None:
    """Raise if devices cannot choose between the pretrained model and their own."""
    if not config.evaluate.choose:
        return
    if config.evaluate.split == "validation":
        raise ValueError(
            "`choose` and `split` = 'validation' exclude each other: a choice by validation rows must be "
            "evaluated on test rows."
        )
    if not config.pretrain.rounds and not config.model.start:
        raise ValueError("`choose` needs a pretrained model: set `pretrain.rounds` or `model.start`.")


def build_watchers(config: ReportConfig) -> dict[str, WatcherFactory]:
    """Return the functions that create the watchers of a config, by import path.

    Raises:
        ConfigError: one cannot be created, or TensorBoard is missing.
    """
    if config.tensorboard:
        check_tensorboard()
    return {path: _watcher_factory(path) for path in config.watchers}


def _watcher_factory(path: str) -> WatcherFactory:
    wanted = "must be a function of a run's folder and its config"
    factory = load("report.watchers", path, {})
    if not callable(factory):
        raise ConfigError(f"`report.watchers`: {path!r} {wanted}, got {factory!r}.")
    try:
        inspect.signature(factory).bind(Path(), {})
    except TypeError as error:
        raise ConfigError(f"`report.watchers`: {path!r} {wanted}: {error}.") from None
    except ValueError:  # Some built-in functions have no signature.
        pass
    return cast(WatcherFactory, factory)
