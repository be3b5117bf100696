"""Onboarding: devices that training has not seen get a model of their own.

The shared part is the trained one and stays as it is. The personal part begins at its start and is fine-tuned
on the device's own training examples. Every stage's model is evaluated: the pretrained one, u with the start
of v, and u with the fine-tuned v. These are rounds over blocks of devices like all others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partita.protocol import DeviceId, Executor, Stage
from partita.training.evaluation import DeviceRow, Summary, summarize
from partita.training.failures import TrainingFailures
from partita.training.loop import run_rounds
from partita.training.plan import Plan, Turn
from partita.training.rounds import Round
from partita.training.stages import Stages


def onboarding_turns(plan: Plan, devices: Sequence[DeviceId], *, first: int = 0) -> list[Turn]:
    """Return the rounds that onboard devices: fine-tuning and the final evaluations.

    Args:
        plan: the plan of the run that has trained the shared part.
        devices: the devices.
        first: the number of the first of these rounds in the run.
    """
    whole = replace(plan, evaluate=replace(plan.evaluate, sample="all"))
    later = [turn for turn in whole.turns(devices) if turn.work == "finetune" or turn.final]
    return [replace(turn, number=number) for number, turn in enumerate(later, start=first)]


def onboard(
    stages: Stages, devices: Sequence[DeviceId], turns: Iterable[Turn], executor: Executor
) -> Iterator[Round]:
    """Fine-tune and evaluate devices that training has not seen; yield each round after its commit.

    Args:
        stages: the stages of a run whose training is over; its journal has what they have ended with.
        devices: the devices.
        turns: their rounds, see `onboarding_turns`; without those that a resumed run has committed.
        executor: carries out the visits.
    """
    by_stage: dict[Stage, list[Turn]] = {}
    for turn in turns:
        by_stage.setdefault(turn.stage, []).append(turn)
    for stage, own in by_stage.items():
        trained = stages.trained(stage, devices)
        yield from run_rounds(trained, trained.start, map(trained.at_best, own), executor, stages.journal)


def summarize_unseen(
    rows: Iterable[DeviceRow],
    stages: Stages,
    seen: Summary,
    failures: Mapping[str, TrainingFailures],
) -> dict[str, Any]:
    """Return the statistics of each stage's model over unseen devices, with the gap to the seen ones.

    The gap is the weighted mean over seen devices minus that over unseen ones, with the sign that makes it
    positive if unseen devices are worse; None if the stage failed for the seen devices. Where more unseen
    devices failed than the plan allows, there are only the number of these and the reason.

    Args:
        rows: the measurements of unseen devices.
        stages: the stages of the run.
        seen: the summary over seen devices.
        failures: the unseen devices whose training failed in each stage.
    """
    split, devices = stages.plan.evaluate.split, len(stages.unseen)
    found = summarize(
        rows,
        stages.task,
        devices=devices,
        split=split,
        failures=failures,
        max_failed=stages.plan.max_failed,
    )
    sign = 1 if seen["direction"] == "up" else -1
    summary: dict[str, Any] = {}
    for stage, statistics in found["stages"].items():
        other = seen["stages"].get(stage)
        gap = sign * (other["weighted_mean"] - statistics["weighted_mean"]) if other else None
        summary[stage] = {**statistics, "gap": gap}
    return summary | found["failed"]
