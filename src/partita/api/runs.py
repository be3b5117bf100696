"""Runs from Python: `run` trains a split model with one method, `pipeline` runs all stages."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import tomli_w

from partita.api.progress import run_progress
from partita.api.result import Result
from partita.config.recording import recorded_values
from partita.device.accelerators import check_available
from partita.device.settings import Precision
from partita.device.store import DiskStore, MemoryStore
from partita.durable import replace_file
from partita.executors.launch import warn_of_copies
from partita.executors.settings import Execution
from partita.exports.models import Origin
from partita.methods.method import Method
from partita.methods.own_model import check_predictor
from partita.partition import Partition, Personalization, personalization_of
from partita.protocol import Executor, Stage
from partita.runs.fingerprint import fingerprint_of
from partita.runs.folder import RunFolder
from partita.runs.journal import FolderJournal
from partita.runs.memory import MemoryJournal
from partita.seals import sealed_text
from partita.server.aggregation import Aggregating
from partita.studies.local import local_executor, needs_workers, write_costs, write_derived
from partita.tasks.check import check_task
from partita.tasks.task import Task
from partita.training.pipeline import Pipeline, RoundCallback
from partita.training.plan import Plan, Training
from partita.training.validation_rows import check_validation

_MEAN = Aggregating()


def pipeline(
    task: Task,
    partition: Partition | Personalization,
    plan: Plan,
    *,
    seed: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    watch: RoundCallback | None = None,
    progress: bool | None = None,
    executor: Executor | None = None,
    workers: int = 1,
    timeout: float = 0.0,
    accelerator: str = "auto",
    precision: Precision = "float32",
    reuse: bool | Literal["disk"] = True,
    on_error: Literal["stop", "skip"] = "stop",
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
        progress: whether progress is shown; by default in a terminal or a notebook, unless `watch` is given.
        executor: where devices run; without it on this machine.
        workers: number of processes that visit devices; 1: all in this process; 0: one for each core or GPU.
        timeout: seconds that a visit in a worker process may take, after which the worker is replaced; 0: no
            limit.
        accelerator: auto (cuda where there is a GPU for it, otherwise cpu), cpu, cuda, cuda:N or mps.
        precision: float32, or bf16 for the forward and backward pass.
        reuse: whether what does not move is computed only once; "disk" also keeps it in the folder `out`.
        on_error: "stop" raises an exception of the task's code; "skip" counts it as a failure of its device.
    """
    if executor is not None and (workers, timeout) != (1, 0.0):
        raise ValueError("Give `executor`, or `workers` and `timeout`, not both.")
    execution = Execution(
        workers=workers,
        timeout=timeout,
        accelerator=accelerator,
        precision=precision,
        reuse=reuse,
        on_error=on_error,
    )
    check_available(execution)
    own = personalization_of(partition)
    plan.check(task.devices.ids)
    check_task(task, own, seed=seed, skips=on_error == "skip")
    check_validation(plan, task, seed=seed)
    training = plan.training(Stage.PERSONALIZED)
    origin = Origin(task, own, seed, training and training.method.local)
    check_predictor(origin.local, task, own, seed=seed)
    folder = None if out is None else RunFolder(out)
    if folder is None and resume:
        raise ValueError("`resume=True` needs `out`, the folder of the run to resume.")
    if folder is None and reuse == "disk":
        raise ValueError("`reuse='disk'` needs `out`, the folder to keep rows in.")
    if folder is not None and folder.path.exists() and not resume:
        raise FileExistsError(f"`{folder.path}` already exists: give another `out`, or `resume=True`.")
    if executor is None:
        warn_of_copies()
    with run_progress(progress, watch) as watcher:
        if folder is None:
            record = _run_in_memory(origin, plan, executor, watcher, execution)
        else:
            record = _run_in_folder(folder, origin, plan, executor, watcher, execution)
    return Result(record, lambda: origin)


def _run_in_memory(
    origin: Origin, plan: Plan, executor: Executor | None, watch: RoundCallback, execution: Execution
) -> MemoryJournal:
    task, own, seed = origin.task, origin.personalization, origin.seed
    is_shared = executor is None and needs_workers(execution)
    store = DiskStore.temporary() if is_shared else MemoryStore()
    journal = MemoryJournal(store if executor is None else None)
    with executor or local_executor(task, own, plan, store, seed=seed, execution=execution) as devices:
        Pipeline(task, own, plan, seed=seed, executor=devices, journal=journal).run(watch)
    return journal


def _run_in_folder(
    folder: RunFolder,
    origin: Origin,
    plan: Plan,
    executor: Executor | None,
    watch: RoundCallback,
    execution: Execution,
) -> RunFolder:
    task, own, seed = origin.task, origin.personalization, origin.seed
    store = DiskStore(folder.personal_folder)
    with (
        FolderJournal(folder, fingerprint_of(task, own, plan, seed=seed, computing=execution)) as journal,
        _checked(executor, journal, store)
        or local_executor(task, own, plan, store, seed=seed, execution=execution) as devices,
    ):
        _write_config(folder, own, plan, execution, seed=seed)
        write_derived(folder, task)
        write_costs(folder, task, own, plan, seed=seed, execution=execution)
        task.skipped.log_to(folder.skipped_file)
        Pipeline(task, own, plan, seed=seed, executor=devices, journal=journal).run(watch)
    return folder


def _checked(executor: Executor | None, journal: FolderJournal, store: DiskStore) -> Executor | None:
    """Return an executor of the caller's; without one, raise if a personal part on this machine is lost."""
    if executor is None:
        journal.check_parts(store)
    return executor


def _write_config(
    folder: RunFolder, own: Personalization, plan: Plan, execution: Execution, *, seed: int
) -> None:
    """Write what a config can say of a run that was started in Python, so that its report can be written."""
    values = recorded_values(own, plan, seed=seed, name=folder.path.resolve().name)
    values |= {"accelerator": execution.accelerator, "precision": execution.precision}
    values |= {"reuse": execution.reuse, "on_error": execution.on_error}
    replace_file(folder.config_file, sealed_text(tomli_w.dumps(values)))


def run(
    task: Task,
    partition: Partition | Personalization,
    method: Method,
    *,
    rounds: int,
    devices_per_round: int | None = None,
    over_select: int = 0,
    aggregating: Aggregating = _MEAN,
    max_failed: float = 0.5,
    seed: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    watch: RoundCallback | None = None,
    progress: bool | None = None,
    executor: Executor | None = None,
    workers: int = 1,
    timeout: float = 0.0,
    accelerator: str = "auto",
    precision: Precision = "float32",
    reuse: bool | Literal["disk"] = True,
    on_error: Literal["stop", "skip"] = "stop",
) -> Result:
    """Train a split model from its initial values with one method, and return the result.

    Args:
        task: data, model, loss and metrics.
        partition: how the model is split.
        method: the method, for example `FedAlt(shared_lr=0.1)`.
        rounds: number of rounds.
        devices_per_round: number of devices in each round; by default 10, or all where there are fewer.
        over_select: number of further devices that are asked in each round, for those that fail.
        aggregating: how the server combines changes, for example `Aggregating(aggregation="median")`.
        max_failed: share of devices that may fail; if more do, the run ends.
        seed: the source of all randomness.
        out: the run's folder; without it everything stays in memory.
        resume: continue the run in `out`.
        watch: called after every round.
        progress: whether progress is shown; by default in a terminal or a notebook, unless `watch` is given.
        executor: where devices run; without it on this machine.
        workers: number of processes that visit devices; 1: all in this process; 0: one for each core or GPU.
        timeout: seconds that a visit in a worker process may take, after which the worker is replaced; 0: no
            limit.
        accelerator: auto (cuda where there is a GPU for it, otherwise cpu), cpu, cuda, cuda:N or mps.
        precision: float32, or bf16 for the forward and backward pass.
        reuse: whether what does not move is computed only once; "disk" also keeps it in the folder `out`.
        on_error: "stop" raises an exception of the task's code; "skip" counts it as a failure of its device.
    """
    cohort = devices_per_round or max(1, min(10, len(task.devices) - over_select))
    training = Training(
        method=method,
        rounds=rounds,
        devices_per_round=cohort,
        over_select=over_select,
        **asdict(aggregating),
    )
    plan = Plan(personalize=training, max_failed=max_failed)
    where: dict[str, Any] = {"out": out, "resume": resume, "executor": executor}
    where |= {"workers": workers, "timeout": timeout, "accelerator": accelerator, "precision": precision}
    where |= {"reuse": reuse, "on_error": on_error}
    return pipeline(task, partition, plan, seed=seed, watch=watch, progress=progress, **where)
