"""Runs from Python: `run` trains a split model, `pipeline` runs all stages, `open` reads a finished run."""

import json
from functools import partial
from pathlib import Path

import tomli_w

from partita.config.building import build
from partita.config.reading import read_config
from partita.config.recording import is_from_python, recorded_partition, recorded_values
from partita.device.roles import build_roles
from partita.device.store import DiskStore, MemoryStore, Store
from partita.durable import replace_file
from partita.errors import ConfigError
from partita.executors.serial import SerialExecutor
from partita.methods import registry
from partita.methods.method import Method
from partita.partition import Partition, Personalization, personalization_of
from partita.protocol import Executor, Stage
from partita.runs.fingerprint import fingerprint_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal, MemoryJournal
from partita.runs.result import Origin, Result
from partita.tasks.build import split_by_stage
from partita.tasks.check import check_task
from partita.tasks.derived import derived_bytes, differing
from partita.tasks.task import Task
from partita.training.costs import cost_model_of
from partita.training.pipeline import Pipeline, RoundCallback
from partita.training.plan import Plan, Training
from partita.training.visits import visit_costs


def local_executor(
    task: Task, personalization: Personalization, plan: Plan, store: Store, *, seed: int
) -> SerialExecutor:
    """Return the executor that visits all devices of a plan in this process."""
    pretrains = plan.pretrain is not None and plan.pretrain.rounds > 0
    roles = build_roles(
        split_by_stage(task, personalization, seed=seed, pretrains=pretrains),
        pretrain=plan.pretrain.method if plan.pretrain else None,
        personalize=plan.personalize.method if plan.personalize else None,
        finetune=plan.finetune,
    )
    return SerialExecutor(task, roles, store, seed=seed)


def pipeline(
    task: Task,
    partition: Partition | Personalization,
    plan: Plan,
    *,
    seed: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    watch: RoundCallback | None = None,
    executor: Executor | None = None,
) -> Result:
    """Run a plan's stages and return the result.

    Args:
        task: data, model, loss and metrics.
        partition: how the model is split after pretraining.
        plan: pretraining, personalization and fine-tuning, each optional.
        seed: the source of all randomness.
        out: the run's folder; without it everything stays in memory.
        resume: continue the run in `out`.
        watch: called after every round.
        executor: where devices run; without it in this process, one after the other.
    """
    own = personalization_of(partition)
    plan.check(task.devices.ids)
    check_task(task, own, seed=seed)
    plan.evaluate.check(task)
    for training in plan.trainings.values():
        training.check(task)
    origin = Origin(task, own, seed)
    if out is None:
        if resume:
            raise ValueError("`resume=True` needs `out`, the folder of the run to resume.")
        memory = MemoryStore()
        journal = MemoryJournal(memory if executor is None else None)
        with executor or local_executor(task, own, plan, memory, seed=seed) as devices:
            Pipeline(task, own, plan, seed=seed, executor=devices, journal=journal).run(watch)
        return Result(journal, lambda: origin)
    folder = RunFolder(out)
    if folder.path.exists() and not resume:
        raise FileExistsError(f"`{folder.path}` already exists: give another `out`, or `resume=True`.")
    store = DiskStore(folder.personal_folder)
    with (
        FolderJournal(folder, fingerprint_of(task, own, plan, seed=seed)) as journal,
        executor or local_executor(task, own, plan, store, seed=seed) as devices,
    ):
        _write_config(folder, own, plan, seed=seed)
        write_derived(folder, task)
        write_costs(folder, task, own, plan, seed=seed)
        task.skipped.log_to(folder.skipped_file)
        Pipeline(task, own, plan, seed=seed, executor=devices, journal=journal).run(watch)
    return Result(folder, lambda: origin)


def _write_config(folder: RunFolder, own: Personalization, plan: Plan, *, seed: int) -> None:
    """Write what a config can say of a run that was started in Python, so that its report can be written."""
    values = recorded_values(own, plan, seed=seed, name=folder.path.resolve().name)
    replace_file(folder.config_file, tomli_w.dumps(values).encode())


def write_derived(folder: RunFolder, task: Task) -> None:
    """Write the values that the task derived from the data of all devices, if there are any."""
    if task.derived:
        replace_file(folder.derived_file, derived_bytes(task.derived))


def write_costs(folder: RunFolder, task: Task, own: Personalization, plan: Plan, *, seed: int) -> None:
    """Write what the run's partition costs a device, for its report, unless that has been written."""
    if folder.costs_file.exists():
        return
    training = plan.training(Stage.PERSONALIZED)
    local = training.method.local if training else registry.find(registry.REFERENCE).update
    model = cost_model_of(task, seed=seed)
    costs = {**model.costs(own, local), **visit_costs(model, own, plan)}
    replace_file(folder.costs_file, json.dumps(costs, indent=1).encode())


def run(
    task: Task,
    partition: Partition | Personalization,
    method: Method,
    *,
    rounds: int,
    devices_per_round: int | None = None,
    seed: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    watch: RoundCallback | None = None,
    executor: Executor | None = None,
) -> Result:
    """Train a split model from its initial values with one method, and return the result.

    Args:
        task: data, model, loss and metrics.
        partition: how the model is split.
        method: the method, for example `FedAlt(shared_lr=0.1)`.
        rounds: number of rounds.
        devices_per_round: number of devices in each round; by default 10, or all where there are fewer.
        seed: the source of all randomness.
        out: the run's folder; without it everything stays in memory.
        resume: continue the run in `out`.
        watch: called after every round.
        executor: where devices run; without it in this process, one after the other.
    """
    cohort = devices_per_round or min(10, len(task.devices))
    plan = Plan(personalize=Training(method=method, rounds=rounds, devices_per_round=cohort))
    return pipeline(task, partition, plan, seed=seed, out=out, resume=resume, watch=watch, executor=executor)


def open(
    path: str | Path, *, task: Task | None = None, partition: Partition | Personalization | None = None
) -> Result:
    """Return the result of the finished run in a folder.

    A run from a config builds its task again when a model is first asked for. For a run that was started in
    Python, give its task; and its partition too where the names of the tensors do not say everything
    (adapters, `full`, regularization, personal parts that differ by device).

    Args:
        path: the run's folder.
        task: the task of a run that was started in Python.
        partition: its partition.

    Raises:
        ConfigError: the folder holds no finished run.
    """
    folder = RunFolder(path)
    if not folder.is_finished:
        raise ConfigError(f"`{folder.path}` holds no finished run.")
    return Result(folder, partial(_origin_of, folder, task, partition))


def _origin_of(folder: RunFolder, task: Task | None, partition: Partition | Personalization | None) -> Origin:
    """Return the task and the settings of the run in a folder.

    Raises:
        ConfigError: the run was started in Python, and its task or partition is not given.
    """
    values = folder.values
    if not is_from_python(values):
        config = read_config(folder.config_file)
        built = build(config, folder.path)
        return Origin(built.task, built.personalization, config.seed)
    if task is None:
        raise ConfigError(
            f"The run in `{folder.path}` was started in Python: to build its models, pass its task to "
            "`partita.open` as `task`."
        )
    if folder.derived and (names := differing(task.derived, folder.derived)):
        raise ConfigError(
            f"`task` has another `{names[0]}` than the run in `{folder.path}`: create it with `derived`, the "
            f"file `{folder.derived_file}`."
        )
    if partition is None:
        partition = recorded_partition(values, task.model())
    return Origin(task, personalization_of(partition), values["seed"])
