"""Runs from Python: `run` for training a split model, `pipeline` for all three stages."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from torch import Tensor, nn

from partita.data.arrow import Table
from partita.methods.method import Method
from partita.models.full import Full
from partita.params import cloned, copy_into
from partita.partition import Partition
from partita.protocol import DeviceId, Stage
from partita.runs.journal import FolderRecord, MemoryRecord, Record
from partita.tasks.build import build_model
from partita.tasks.check import check_task
from partita.tasks.task import Task
from partita.training.evaluation import Summary
from partita.training.loop import Pipeline, Watch
from partita.training.plan import Plan, Training


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    summary: Summary
    """Per stage: means, spread, and how many devices were helped and hurt."""
    devices: Table
    """An Arrow table with a row a (stage, device, split)."""
    shared: Mapping[str, Tensor]
    """u, the shared part."""
    _task: Task
    _partition: Partition
    _record: Record
    _seed: int

    def personal(self, device: DeviceId) -> dict[str, Tensor]:
        """Return v_i, the personal part of a device; its start where the device was never counted."""
        if device not in self._task.devices:
            near = difflib.get_close_matches(device, self._task.devices.ids[:10_000], n=3)
            raise ValueError(f"There is no device {device!r}. Near ids: {', '.join(near) or 'none'}.")
        own = self._partition.on(device)
        if kept := own.personal_in(self._record.store.load(device) or {}):
            return kept
        if own.begin is not None:
            return cloned(own.begin(self.shared))
        pretrained = self._record.load_shared(Stage.PRETRAINED)
        return cloned(own.of(build_model(self._task, own, seed=self._seed, state=pretrained)).personal)

    def model(self, device: DeviceId) -> nn.Module:
        """Return a device's whole model, in eval mode."""
        personal, own = self.personal(device), self._partition.on(device)
        model = build_model(self._task, own, seed=self._seed)
        parts = own.of(model)
        copy_into(parts.shared, self.shared)
        copy_into(parts.personal, personal)
        return (model.personal if isinstance(model, Full) else model).eval()


class RunSettings(TypedDict, total=False):
    """Where a run begins and where it is kept."""

    seed: int
    out: str | Path | None
    resume: bool
    watch: Watch | None


def pipeline(
    task: Task,
    partition: Partition,
    plan: Plan,
    *,
    seed: int = 1,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Run a plan's stages and return what came out.

    Args:
        task: what is learned.
        partition: how the model is split after pretraining.
        plan: pretraining, personalizing and finetuning, each where wanted.
        seed: all randomness derives from it.
        out: the run's folder; without one everything stays in memory.
        resume: go on with the run that `out` holds.
        watch: told of every round.
    """
    if not isinstance(partition, Partition):
        raise TypeError(f"`partition` must be a Partition, got {partition!r}.")
    plan.check(len(task.devices))
    check_task(task, partition, seed=seed)
    plan.evaluate.check(task)
    record = _record(out, resume=resume)
    try:
        summary = Pipeline(task, partition, plan, seed=seed, record=record).run(watch)
    finally:
        record.close()
    shared = record.load_shared(Stage.PERSONALISED)
    return Result(summary, record.devices(), shared, task, partition, record, seed)


def run(
    task: Task,
    partition: Partition,
    method: Method,
    *,
    rounds: int,
    devices_per_round: int | None = None,
    **settings: Unpack[RunSettings],
) -> Result:
    """Train a split model from its initial values with one method, and return what came out.

    Args:
        task: what is learned.
        partition: how the model is split.
        method: what a device does in a round; `FedAlt(shared_lr=0.1)`, say.
        rounds: how many.
        devices_per_round: how many devices are asked in each; left out, 10, or all where there are fewer.
        settings: `seed`, `out`, `resume` and `watch`, as in `pipeline`.
    """
    cohort = devices_per_round or min(10, len(task.devices))
    training = Training(method=method, rounds=rounds, devices_per_round=cohort)
    return pipeline(task, partition, Plan(personalize=training), **settings)


def _record(out: str | Path | None, *, resume: bool) -> Record:
    if out is None:
        if resume:
            raise ValueError("`resume=True` needs the folder to go on with, as `out`.")
        return MemoryRecord()
    folder = Path(out)
    if folder.exists() and not resume:
        raise FileExistsError(f"`{folder}` exists already: give another `out`, or `resume=True`.")
    return FolderRecord(folder)
