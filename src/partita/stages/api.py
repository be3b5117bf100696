"""Runs from Python: `run` for training a split model, `pipeline` for all three stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from partita.data.table import Table
from partita.evaluation import Summary
from partita.local.method import Method
from partita.params import copy_into
from partita.partition import Partition
from partita.protocol import DeviceId, Stage
from partita.stages.pipeline import Pipeline, Watch
from partita.stages.plan import Plan, Training
from partita.stages.record import FolderRecord, MemoryRecord, Record
from partita.tasks.build import build_model
from partita.tasks.task import Task


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
        kept = self._record.store.load(device)
        return self._record.load_shared("start") if kept is None else kept

    def model(self, device: DeviceId) -> nn.Module:
        """Return a device's whole model, in eval mode."""
        model = build_model(self._task, self._partition, seed=self._seed)
        parts = self._partition.of(model)
        copy_into(parts.shared, self.shared)
        copy_into(parts.personal, self.personal(device))
        return model.eval()


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
        task: what is learnt.
        partition: how the model is split after pretraining.
        plan: pretraining, personalising and finetuning, each where wanted.
        seed: all randomness derives from it.
        out: the run's folder; without one everything stays in memory.
        resume: go on with the run that `out` holds.
        watch: told of every round.
    """
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
    devices_per_round: int = 10,
    seed: int = 1,
    out: str | Path | None = None,
) -> Result:
    """Train a split model from its initial values with one method, and return what came out."""
    training = Training(method=method, rounds=rounds, devices_per_round=devices_per_round)
    return pipeline(task, partition, Plan(personalise=training), seed=seed, out=out)


def _record(out: str | Path | None, *, resume: bool) -> Record:
    if out is None:
        return MemoryRecord()
    folder = Path(out)
    if folder.exists() and not resume:
        raise FileExistsError(f"`{folder}` exists already: give another `out`, or `resume=True`.")
    return FolderRecord(folder)
