"""From a config's flat values to the objects of a run: a task, a partition and a plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from partita.config.imports import METHODS, OPTIMIZERS, load, own_code, section
from partita.config.methods import NAMED
from partita.config.reading import did_you_mean
from partita.config.schema import (
    Config,
    FinetuneConfig,
    PartitionConfig,
    PersonalizeConfig,
    PretrainConfig,
)
from partita.config.tasks import build_task
from partita.config.watchers import build_watchers
from partita.errors import ConfigError
from partita.methods.carried import Carried, Carries, LocalFn, declared_by, make_update
from partita.methods.descent import OptimizerFn, Steps
from partita.methods.method import Method
from partita.models.adapters import Width
from partita.models.parts import named_partition, named_patterns
from partita.models.start import Account
from partita.partition import Partition, Personalization, Regularization
from partita.partition.selection import REST, Selection
from partita.progress.watchers import Maker
from partita.protocol import Stage
from partita.server.optimizers import Adagrad, Adam, Averaging, ServerOptimizer, Yogi
from partita.server.schedules import Exponential, Linear, Schedule, constant
from partita.tasks.build import build_model
from partita.tasks.check import check_task
from partita.tasks.task import Task
from partita.training.plan import Evaluation, Finetuning, Plan, Training

Choice = TypeVar("Choice")
_NO_METHOD = (
    "`method` must be the name of one or the import path of an update of `personal` and `shared` steps, such "
    "as 'partita:LocalAlt', got {!r}: {}."
)


@dataclass(frozen=True)
class Built:
    """The objects of a run."""

    task: Task
    personalization: Personalization
    plan: Plan
    start: Account | None
    """What became of the file to begin from, where there is one."""
    watchers: Mapping[str, Maker]
    """What makes the watchers that the config names, by their import paths."""


def build(config: Config, folder: Path) -> Built:
    """Return the objects of a run; files that the config names are looked for in `folder`.

    Raises:
        ConfigError: a value makes no sense.
    """
    watchers = build_watchers(config.report)
    task, start = build_task(config, folder)
    with own_code("The model"):
        model = build_model(task, seed=config.seed)
    named = NAMED.get(config.personalize.method)
    own = build_partition(config.partition, model, follows=bool(named and named.follows))
    _check_baseline(config)
    with section("evaluate"):
        evaluate = _evaluation(config)
    plan = Plan(
        pretrain=_training("pretrain", config.pretrain),
        personalize=_training("personalize", config.personalize),
        finetune=_finetuning(config.finetune) if own.partition.names("personal") else None,
        evaluate=evaluate,
    )
    with own_code("`partition.adapter_width`"):
        own.kinds(task.devices.ids)
    with own_code("The task"):
        plan.check(len(task.devices))
        check_task(task, own, seed=config.seed)
        with section("evaluate"):
            evaluate.check(task)
    with own_code("`personalize.method`"):
        _check_carried(plan, own, task, seed=config.seed)
    return Built(task, own, plan, start, watchers)


def _check_carried(plan: Plan, own: Personalization, task: Task, *, seed: int) -> None:
    """Raise where a method declares tensors that it cannot carry."""
    training = plan.training(Stage.PERSONALISED)
    if training and isinstance(training.method.local, Carries):
        model = build_model(task, own, seed=seed)
        declared_by(training.method.local, own.partition, own.partition.of(model).shared)


def _check_baseline(config: Config) -> None:
    if config.finetune.baseline and not config.finetune.epochs:
        raise ConfigError("`finetune.baseline` needs `finetune.epochs` of at least 1, got 0.")
    if config.finetune.baseline and config.partition.frozen:
        raise ConfigError("`finetune.baseline` trains all of the model: leave out `partition.frozen`, or it.")


def build_partition(config: PartitionConfig, model: nn.Module, *, follows: bool = False) -> Personalization:
    """Return how the config splits a model; `follows` as in `full`."""
    with section("partition"):
        others = {
            "shared": _selection(config.shared, model),
            "frozen": _selection(config.frozen, model),
            "untie": config.untie,
        }
        regularization = Regularization(dropout=config.dropout, l2=config.l2, l2_to=config.l2_to)
        width = config.adapter_width
        if isinstance(width, str):
            width = cast(Width, load("partition.adapter_width", width, {}))
            if not callable(width):
                raise ValueError(f"`adapter_width` must be a function of a device's id, got {width!r}.")
        if isinstance(config.personal, str) and config.personal != "rest":
            settings = {"proximal": config.proximal, "follows": follows, "width": width}
            return named_partition(
                model, config.personal, regularization=regularization, **settings, **others
            )
        partition = Partition(model, personal=_selection(config.personal, model), **others)
        return Personalization(partition, regularization=regularization)


def _selection(value: str | list[str], model: nn.Module) -> Selection:
    if value == "rest":
        return REST
    return named_patterns(model, value) if isinstance(value, str) else value


def _training(key: str, config: PretrainConfig) -> Training:
    with section(key):
        return Training(
            method=_method(key, config),
            rounds=config.rounds,
            devices_per_round=config.devices_per_round,
            schedule=_schedule(config),
            server=_server(config),
        )


def _method(key: str, config: PretrainConfig) -> Method:
    optimizer = _optimizer(key, config)
    method = partial(
        Method,
        shared_lr=config.shared_lr,
        shared_epochs=config.shared_epochs,
        shared_steps=config.shared_steps,
        batch_size=config.batch_size,
        max_grad_norm=config.max_grad_norm,
        weights=config.weights,
        optimizer=optimizer,
        proximal=config.proximal,
    )
    if not isinstance(config, PersonalizeConfig):
        return method(local=load("method", "fedavg", METHODS), personal_epochs=0)
    return method(
        local=_local(load(f"{key}.method", config.method, METHODS), config.method),
        personal_lr=config.personal_lr,
        personal_epochs=config.personal_epochs,
        personal_steps=config.personal_steps,
        stateful=config.stateful,
    )


def _local(function: Any, name: str) -> LocalFn:
    """Return a method's update, once it has been seen to take steps."""
    steps = Steps(count=1, lr=0.0)
    try:
        carried = Carried(kept={}, sent={})
        callable_update = callable(make_update(function, personal=steps, shared=steps, carried=carried))
    except Exception as error:
        raise ValueError(_NO_METHOD.format(name, f"{type(error).__name__}: {error}")) from error
    if not callable_update:
        raise ValueError(_NO_METHOD.format(name, "it gives nothing to call"))
    return function


def _finetuning(config: FinetuneConfig) -> Finetuning:
    with section("finetune"):
        return Finetuning(
            personal_lr=config.personal_lr,
            epochs=config.epochs,
            batch_size=config.batch_size,
            max_grad_norm=config.max_grad_norm,
            optimizer=_optimizer("finetune", config),
        )


def _optimizer(key: str, config: PretrainConfig | FinetuneConfig) -> OptimizerFn:
    """Return the devices' optimizer; its settings are passed on where they are not 0."""
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
        raise ValueError(f"`optimizer` = {config.optimizer!r} with {given} is unfit: {error}.") from error
    return optimizer


def _schedule(config: PretrainConfig) -> Schedule:
    schedules: dict[str, Callable[[], Schedule]] = {
        "constant": lambda: constant,
        "linear": lambda: Linear(warmup=config.warmup),
        "exponential": lambda: Exponential(halve_every=config.halve_every),
    }
    return _choose("schedule", config.schedule, schedules)()


def _server(config: PretrainConfig) -> ServerOptimizer:
    servers: dict[str, Callable[[], ServerOptimizer]] = {
        "fedavg": lambda: Averaging(lr=config.server_lr, momentum=config.server_momentum),
        "fedadam": lambda: Adam(lr=config.server_lr),
        "fedadagrad": lambda: Adagrad(lr=config.server_lr),
        "fedyogi": lambda: Yogi(lr=config.server_lr),
    }
    return _choose("server_optimizer", config.server_optimizer, servers)()


def _choose(key: str, value: str, choices: dict[str, Choice]) -> Choice:
    if value not in choices:
        hint = did_you_mean(value, list(choices))
        raise ValueError(f"`{key}` must be one of {', '.join(choices)}, got {value!r}.{hint}")
    return choices[value]


def _evaluation(config: Config) -> Evaluation:
    devices, choose = config.evaluate.devices, bool(config.evaluate.choose)
    if choose and config.evaluate.split == "validation":
        raise ValueError("Models cannot be judged by the rows that `choose` goes by: leave out `split`.")
    if isinstance(devices, str) and devices != "all":
        raise ValueError(f"`devices` must be 'all' or a number, got {devices!r}.")
    if choose and not config.pretrain.rounds and not config.model.start:
        raise ValueError("`choose` needs a model to choose beside a device's own: `pretrain.rounds` above 0.")
    return Evaluation(
        devices=None if isinstance(devices, str) else devices,
        every=config.evaluate.every,
        split=config.evaluate.split,
        choose=choose,
    )
