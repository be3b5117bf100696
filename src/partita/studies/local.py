"""Running a plan on this machine: the default executor, and the files that every run's folder has."""

import json
import logging
from collections.abc import Callable

from partita.device.roles import build_roles
from partita.device.store import DiskStore, Store
from partita.durable import replace_file
from partita.errors import ConfigError
from partita.executors.processes import IS_SUPPORTED
from partita.executors.serial import SerialExecutor
from partita.executors.settings import SERIAL, Execution
from partita.executors.workers import WorkersExecutor
from partita.methods import registry
from partita.partition import Personalization
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.tasks.build import split_by_stage
from partita.tasks.derived import derived_bytes
from partita.tasks.task import Task
from partita.training.costs import cost_model_of
from partita.training.plan import Plan
from partita.training.visit_memory import visit_costs

logger = logging.getLogger(__name__)


def local_executor(
    task: Task,
    personalization: Personalization,
    plan: Plan,
    store: Store,
    *,
    seed: int,
    execution: Execution = SERIAL,
    processes: Callable[[], int] | None = None,
) -> SerialExecutor | WorkersExecutor:
    """Return the executor that visits all devices of a plan on this machine.

    Args:
        task: data, model, loss and metrics.
        personalization: how the model is split after pretraining.
        plan: the stages.
        store: storage of personal parts; worker processes need one on disk.
        seed: the run's seed.
        execution: how visits are carried out.
        processes: returns the number of worker processes to use from then on, where it may change during the
            run; by default that of `execution`.

    Raises:
        ConfigError: a visit is to have a time limit, on a system that has no worker processes.
    """
    pretrains = plan.pretrain is not None and plan.pretrain.rounds > 0
    roles = build_roles(
        split_by_stage(task, personalization, seed=seed, pretrains=pretrains),
        pretrain=plan.pretrain.method if plan.pretrain else None,
        personalize=plan.personalize.method if plan.personalize else None,
        finetune=plan.finetune,
    )
    _check_supported(execution)
    serial = SerialExecutor(task, roles, store, seed=seed, computing=execution)
    if not IS_SUPPORTED or not (execution.uses_workers or processes is not None):
        return serial
    assert isinstance(store, DiskStore), "Worker processes share personal parts on disk."
    limit, number = len(task.devices), execution.processes
    return WorkersExecutor(
        serial,
        lambda: min(number if processes is None else processes(), limit),
        timeout=execution.timeout,
        orphaned=store.remove_temporary,
    )


def needs_workers(execution: Execution) -> bool:
    """Return whether visits are in worker processes."""
    return execution.uses_workers and IS_SUPPORTED


def _check_supported(execution: Execution) -> None:
    """Log it if there are to be worker processes that this system does not have.

    Raises:
        ConfigError: a visit is to have a time limit.
    """
    if execution.uses_workers and not IS_SUPPORTED:
        if execution.timeout:
            raise ConfigError("`timeout` needs worker processes, which only Linux has: leave it out.")
        logger.warning("Worker processes need Linux: devices are visited one by one, as with `workers` = 1.")


def write_derived(folder: RunFolder, task: Task) -> None:
    """Write the values that the task derived from the data of devices in training, if there are any."""
    if task.derived:
        replace_file(folder.derived_file, derived_bytes(task.derived))


def write_costs(
    folder: RunFolder,
    task: Task,
    own: Personalization,
    plan: Plan,
    *,
    seed: int,
    execution: Execution = SERIAL,
) -> None:
    """Write what the run's partition costs a device, for its report, unless a commit has recorded it."""
    if folder.recorded.has(folder.costs_file):
        return
    training = plan.training(Stage.PERSONALIZED)
    local = training.method.local if training else registry.find(registry.REFERENCE).update
    model = cost_model_of(task, seed=seed)
    costs = {**model.costs(own, local), **visit_costs(model, own, plan, reuse=bool(execution.reuse))}
    replace_file(folder.costs_file, json.dumps(costs, indent=1).encode())
