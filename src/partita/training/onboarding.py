"""Onboarding: devices that training has not seen get a model of their own.

The shared part is the trained one and stays as it is. The personal part begins at its start and is fine-tuned
on the device's own training examples. Every stage's model is evaluated: the pretrained one, u with the start
of v, and u with the fine-tuned v. These are rounds over blocks of devices like all others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from partita.protocol import DeviceId, Executor, Stage
from partita.training.evaluation import DeviceRow, Summary, columns_of, summarize
from partita.training.failures import TrainingFailures, failures_by_stage
from partita.training.journal import RoundRow
from partita.training.loop import run_rounds
from partita.training.plan import Plan, Turn
from partita.training.rounds import Round
from partita.training.serving import Served, better, served
from partita.training.stages import Stages

PREVIOUS = "kept_previous"
"""The entry of a summary, where devices were personalized again, of those that kept the model before."""
RoundCallback = Callable[[RoundRow, int, int], None]
"""Called after every round, see `training.pipeline`."""


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
    return _with_gaps(found["stages"], seen) | found["failed"]


def _with_gaps(unseen: Mapping[str, Any], seen: Summary) -> dict[str, Any]:
    """Return the statistics of each stage over unseen devices, with the gap to those over seen ones."""
    sign = 1 if seen["direction"] == "up" else -1
    summary: dict[str, Any] = {}
    for stage, statistics in unseen.items():
        other = seen["stages"].get(stage)
        gap = sign * (other["weighted_mean"] - statistics["weighted_mean"]) if other else None
        summary[stage] = {**statistics, "gap": gap}
    return summary


ServedBefore = Mapping[DeviceId, Served]
"""The model that each device was served before it was personalized again."""


class Onboarding:
    """Devices that join a finished run: all of a task's devices, none of which training has seen.

    Args:
        stages: the stages of the run, for these devices; its journal is the onboarding's own.
        executor: carries out the visits; entered by the caller.
        seen: the summary of the run.
        before: where devices are personalized again, what they were served before. The stage `personalized`
            is then the personal part that a device had before, and `finetuned` the new one.
    """

    def __init__(
        self, stages: Stages, executor: Executor, *, seen: Summary, before: ServedBefore | None = None
    ) -> None:
        self._stages = stages
        self._devices = stages.all_devices
        self._executor = executor
        self._journal = stages.journal
        self._seen = seen
        self._before = before
        self._turns = onboarding_turns(stages.plan, self._devices)

    def run(self, on_round: RoundCallback | None = None) -> Summary:
        """Run the rounds that are not committed yet, and return the summary."""
        if (summary := self._journal.finished()) is not None:
            return summary
        last = self._journal.last()
        if last is not None:
            self._executor.close(last.label, last.counted, last.asked)
        left = [turn for turn in self._turns if last is None or turn.number > last.number]
        for done in onboard(self._stages, self._devices, left, self._executor):
            if on_round is not None:
                self._report(done, on_round)
        return self._finish()

    def _report(self, done: Round, on_round: RoundCallback) -> None:
        stage = done.turn.stage
        rounds = sum(turn.stage is stage and turn.work != "evaluate" for turn in self._turns)
        headline = {"headline": self._stages.task.headline} if done.turn.work == "evaluate" else {}
        on_round({**done.line, "rounds": rounds, **headline}, done.turn.number + 1, len(self._turns))

    def _finish(self) -> Summary:
        """Write the table of devices and the summary."""
        task, plan, journal = self._stages.task, self._stages.plan, self._journal
        failures = failures_by_stage(journal.onboarding())
        chosen = list(self._served())
        summary = summarize(
            chain(journal.rows(), chosen),
            task,
            devices=len(self._devices),
            split=plan.evaluate.split,
            failures=failures,
            max_failed=plan.max_failed,
        )
        summary["stages"] = _with_gaps(summary["stages"], self._seen)
        if self._before is not None:
            new = {row["device"] for row in chosen if row["is_new"]}
            summary[PREVIOUS] = [device for device in self._devices if device not in new]
        journal.finish(columns_of(task), chain(journal.rows(), chosen), summary)
        return summary

    def _served(self) -> Iterator[DeviceRow]:
        """Yield the measurements of the models that devices are served, where there is a choice."""
        task, devices = self._stages.task, len(self._devices)
        if self._before is not None:
            yield from better(self._journal.rows, task, self._before)
        elif self._stages.plan.evaluate.choose:
            yield from served(self._journal.rows, task, devices=devices)
