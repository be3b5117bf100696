"""Running a plan in this process: the default executor, and the files that every run's folder has."""

import json

from partita.device.roles import Role, build_roles
from partita.device.store import Store
from partita.durable import replace_file
from partita.executors.serial import SerialExecutor
from partita.executors.settings import SERIAL, Execution
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


def local_executor(
    task: Task,
    personalization: Personalization,
    plan: Plan,
    store: Store,
    *,
    seed: int,
    execution: Execution = SERIAL,
) -> SerialExecutor:
    """Return the executor that visits all devices of a plan on this machine."""
    return SerialExecutor(task, roles_of(task, personalization, plan, seed=seed), store, seed=seed)


def roles_of(task: Task, personalization: Personalization, plan: Plan, *, seed: int) -> dict[Stage, Role]:
    """Return how devices learn in each stage of a plan."""
    pretrains = plan.pretrain is not None and plan.pretrain.rounds > 0
    return build_roles(
        split_by_stage(task, personalization, seed=seed, pretrains=pretrains),
        pretrain=plan.pretrain.method if plan.pretrain else None,
        personalize=plan.personalize.method if plan.personalize else None,
        finetune=plan.finetune,
    )


def write_derived(folder: RunFolder, task: Task) -> None:
    """Write the values that the task derived from the data of devices in training, if there are any."""
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
