"""The pipeline of the paper: pretrain w_g, personalize u and v_i from it, fine-tune v_i alone.

Around the rounds of each stage stands what a run needs besides them: it resumes after the last commit,
reports progress, and ends with a summary.
"""

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from partita.errors import ConfigError, RunFailed
from partita.partition import Personalization
from partita.protocol import Executor, Stage, label_of
from partita.server.round import State
from partita.tasks.task import Task
from partita.training.evaluation import DeviceRow, Pretrained, Summary, columns_of, summarize
from partita.training.failures import failures_by_stage
from partita.training.journal import Journal, RoundRow
from partita.training.loop import run_rounds
from partita.training.onboarding import onboard, onboarding_turns, summarize_unseen
from partita.training.plan import Plan, Turn
from partita.training.rounds import Round
from partita.training.serving import served
from partita.training.stages import ServerStage, Stages
from partita.training.stopping import NO_MEASUREMENT, Stopping

logger = logging.getLogger(__name__)

RoundCallback = Callable[[RoundRow, int, int], None]
"""Called after every round: its line of `rounds.jsonl`, the number of rounds done, the number of all rounds
(smaller once a stage has stopped early).

The line has more than the file: `rounds`, the number of rounds of its stage; for an evaluation `headline`,
the name of `metric`; and for an evaluation after pretraining `helped`, `hurt` and `same`, which count its
devices against the pretrained model.
"""


class Pipeline:
    """A run of a plan: every round that is not committed yet, stage after stage.

    Args:
        task: data, model, loss and metrics.
        personalization: how the model is split after pretraining.
        plan: the rounds of every stage.
        seed: the source of all randomness.
        executor: carries out the visits; entered by the caller.
        journal: where the run is written, and where a resumed run continues.
    """

    def __init__(
        self,
        task: Task,
        personalization: Personalization,
        plan: Plan,
        *,
        seed: int,
        executor: Executor,
        journal: Journal,
    ) -> None:
        devices = executor.devices()
        plan.check(devices)
        _check_restores(plan, executor)
        self._stages = Stages(task, personalization, plan, seed=seed, devices=devices, journal=journal)
        self._executor = executor
        self._journal = journal
        self._turns = self._stages.turns
        self._onboarding = onboarding_turns(plan, self._stages.unseen, first=len(self._turns))
        self._rounds = {True: _training_rounds(self._turns), False: _training_rounds(self._onboarding)}
        self._pretrained = cache(self._measured_pretrained)
        self._is_warned = False
        self._reason = "`rounds.jsonl` says why."

    def run(self, on_round: RoundCallback | None = None) -> Summary:
        """Run what is left to do and return the summary."""
        if (summary := self._journal.finished()) is not None:
            return summary
        last = self._journal.last()
        if last is not None:
            self._executor.close(last.label, last.counted, last.asked)
        done = -1 if last is None else last.number
        for stage in dict.fromkeys(turn.stage for turn in self._turns):
            self._leave_out_skipped(self._stages.stopping(stage), stage)
            left = [turn for turn in self._turns if turn.stage is stage and turn.number > done]
            resumed = self._journal.state() if last is not None and last.stage == stage else None
            if left:
                self._run_stage(stage, left, resumed, on_round)
        if self._turns[-1].stage is Stage.PRETRAINED:
            self._save_starts(Stage.FINETUNED)
        self._onboard([turn for turn in self._onboarding if turn.number > done], on_round)
        return self._finish()

    def _run_stage(
        self,
        stage: Stage,
        turns: Sequence[Turn],
        resumed: State | None,
        on_round: RoundCallback | None,
    ) -> None:
        self._save_starts(stage)
        own = self._stages.open(stage)
        state = resumed or own.start
        for is_final in (False, True):
            if is_final:
                own, state = self._end_training(own, state)
            some = (turn for turn in turns if turn.final == is_final and not own.stopping.skips(turn))
            for done in run_rounds(own, state, map(own.at_best, some), self._executor, self._journal):
                state = done.state
                self._leave_out_skipped(own.stopping, stage)
                self._report(done, on_round)
                self._check_heard(done)

    def _onboard(self, turns: Sequence[Turn], on_round: RoundCallback | None) -> None:
        """Personalize the unseen devices, once training is over."""
        for done in onboard(self._stages, self._stages.unseen, turns, self._executor):
            self._report(done, on_round)

    def _leave_out_skipped(self, stopping: Stopping, stage: Stage) -> None:
        """Take the turns before which a stage has stopped out of the run, in place."""
        if stopping.decision.stops:
            self._turns = [t for t in self._turns if t.stage is not stage or not stopping.skips(t)]

    def _count_until(self, turn: Turn) -> int:
        """Return the number of rounds done after a turn."""
        both = self._turns, self._onboarding
        return sum(bisect_right(turns, turn.number, key=lambda each: each.number) for turns in both)

    def _end_training(self, own: ServerStage, state: State) -> tuple[ServerStage, State]:
        """Go back to the best round of a stage that may stop early, and save the result of its training."""
        if (best := own.stopping.best) is not None:
            self._executor.restore(label_of(own.stage, best))
            own = replace(own, failures=self._stages.failures(own.stage, best))
            state = replace(state, shared=self._journal.best())
        elif own.stopping.patience:
            logger.warning("Early stopping had no effect in `%s`: %s.", own.stage, NO_MEASUREMENT)
        self._save_result(own, state)
        return own, state

    def _save_starts(self, stage: Stage) -> None:
        for name, params in self._stages.starts(stage).items():
            self._journal.save_shared(name, params)

    def _save_result(self, own: ServerStage, state: State) -> None:
        """Save what a stage's training ends with, unless no device replied in it."""
        if self._stages.plan.training(own.stage) and not state.steps:
            raise RunFailed(f"No device replied in any round of `{own.stage}`: {self._reason}")
        if own.stage is not Stage.FINETUNED:
            self._journal.save_shared(own.stage, own.result(state))

    def _report(self, done: Round, on_round: RoundCallback | None) -> None:
        """Call the callback after a round."""
        if on_round is None:
            return
        stage, seen = done.turn.stage, done.stage.seen
        line = {**done.line, "rounds": self._rounds[seen][stage]}
        if done.turn.work == "evaluate":
            line["headline"] = self._stages.task.headline
            if stage is not Stage.PRETRAINED:
                line |= self._pretrained(seen).against(done.rows)
        total = len(self._turns) + len(self._onboarding)
        on_round(line, self._count_until(done.turn), total)

    def _measured_pretrained(self, seen: bool) -> Pretrained:
        """Return the pretrained model's metrics, once they have been measured."""
        rows, devices = self._rows(seen=seen), self._evaluated(seen=seen)
        return Pretrained(rows, self._stages.task, devices=devices, split=self._stages.plan.evaluate.split)

    def _rows(self, *, seen: bool) -> Iterator[DeviceRow]:
        """Yield the measurements of the seen or of the unseen devices."""
        return (row for row in self._journal.rows() if row["seen"] == seen)

    def _evaluated(self, *, seen: bool) -> int:
        return len(self._stages.evaluated if seen else self._stages.unseen)

    def _check_heard(self, done: Round) -> None:
        """Warn of the first training round in which all devices failed."""
        turn, failed = done.turn, done.outcome.failed
        if turn.work != "update" or done.outcome.heard:
            return
        self._reason = next(iter(failed.values()))
        if not self._is_warned:
            self._is_warned = True
            logger.warning("No device replied in round %d of `%s`: %s", turn.round, turn.stage, self._reason)

    def _finish(self) -> Summary:
        """Write the table of devices and the summary."""
        stages, task, split = self._stages, self._stages.task, self._stages.plan.evaluate.split
        stopping = {stage: stages.stopping(stage) for stage in Stage}
        best: dict[str, int] = {stage: own.best for stage, own in stopping.items() if own.best is not None}
        failures = failures_by_stage(self._journal.rounds(), best)
        rows, devices = self._all_rows(seen=True), len(stages.evaluated)
        summary = summarize(
            rows, task, devices=devices, split=split, failures=failures, max_failed=stages.plan.max_failed
        )
        if outcomes := {str(stage): own.record() for stage, own in stopping.items() if own.patience}:
            summary["early_stopping"] = outcomes
        if stages.unseen:
            failures = failures_by_stage(self._journal.onboarding())
            summary["unseen"] = summarize_unseen(self._all_rows(seen=False), stages, summary, failures)
        rows = chain(self._journal.rows(), self._served(seen=True), self._served(seen=False))
        self._journal.finish(columns_of(task), rows, summary)
        return summary

    def _all_rows(self, *, seen: bool) -> Iterator[DeviceRow]:
        """Yield the measurements of the seen or of the unseen devices, with those of served models."""
        return chain(self._rows(seen=seen), self._served(seen=seen))

    def _served(self, *, seen: bool) -> Iterator[DeviceRow]:
        """Yield the measurements of the models that devices choose, if they choose one."""
        devices = self._evaluated(seen=seen)
        if self._stages.plan.evaluate.choose and devices:
            yield from served(partial(self._rows, seen=seen), self._stages.task, devices=devices)


def _check_restores(plan: Plan, executor: Executor) -> None:
    """Raise if training may stop early and an executor of one's own cannot let devices go back."""
    is_patient = any(training.patience for training in plan.trainings.values())
    if is_patient and not callable(getattr(executor, "restore", None)):
        raise ConfigError(
            f"`patience` needs an executor with a method `restore(label)`, and {type(executor).__name__} has "
            "none: see `Executor`."
        )


def _training_rounds(turns: Sequence[Turn]) -> Counter[Stage]:
    """Return the number of rounds of each stage that are not evaluations."""
    return Counter(turn.stage for turn in turns if turn.work != "evaluate")
