"""Runs from Python: `run` trains a split model, `pipeline` runs all stages, `open` reads a finished run."""

from pathlib import Path

from partita.device.roles import build_roles
from partita.device.store import DiskStore, MemoryStore, Store
from partita.executors.serial import SerialExecutor
from partita.methods.method import Method
from partita.partition import Partition, Personalization, personalization_of
from partita.protocol import Executor
from partita.runs.fingerprint import fingerprint_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal, MemoryJournal
from partita.runs.result import Origin, Result
from partita.tasks.build import split_by_stage
from partita.tasks.check import check_task
from partita.tasks.task import Task
from partita.training.pipeline import Pipeline, RoundCallback
from partita.training.plan import Plan, Training


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
        plan: pretraining, personalization and finetuning, each where wanted.
        seed: the source of all randomness.
        out: the run's folder; without it everything stays in memory.
        resume: continue the run in `out`.
        watch: called after every round.
        executor: where devices run; without it in this process, one after the other.
    """
    own = personalization_of(partition)
    plan.check(len(task.devices))
    check_task(task, own, seed=seed)
    plan.evaluate.check(task)
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
        Pipeline(task, own, plan, seed=seed, executor=devices, journal=journal).run(watch)
    return Result(folder, lambda: origin)


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
