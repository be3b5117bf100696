"""One finished round: its commit, its line in `rounds.jsonl`, and the measurements of its devices."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.protocol import Evaluate, Order, Pace, Update, label_of
from partita.server.round import Outcome, State
from partita.tasks.task import Task
from partita.training.evaluation import DeviceRow, combined_mean, further_metrics, rows_of, without_metric
from partita.training.journal import Commit, RoundRow
from partita.training.plan import Turn
from partita.training.stages import ServerStage


@dataclass(frozen=True)
class Round:
    """A finished round."""

    stage: ServerStage
    turn: Turn
    orders: Sequence[Order]
    outcome: Outcome
    state: State
    """The server's state after the round."""
    seconds: float
    """Processor time of the visits."""

    @property
    def commit(self) -> Commit:
        """The commit of this round; an evaluation moves no personal part."""
        moves = self.turn.work != "evaluate"
        return Commit(
            number=self.turn.number,
            stage=self.turn.stage,
            round=self.turn.round,
            label=label_of(self.turn.stage, self.turn.round),
            counted=self.outcome.heard if moves else [],
            asked=list(self.outcome.asked) if moves else [],
            steps=self.state.steps,
            best=self.stage.stopping.best,
        )

    @cached_property
    def line(self) -> RoundRow:
        """The round's line of `rounds.jsonl`."""
        return {
            **self._facts(),
            **_means(self.rows, self.stage.stages.task, self.stage.stages.plan.evaluate.split),
            **self._validation(),
            "seconds": round(self.seconds, 4),
        }

    @cached_property
    def rows(self) -> list[DeviceRow]:
        """The measurements of an evaluation; a device whose training failed has no metrics."""
        task, failed = self.stage.stages.task, self.stage.failed_models
        return [
            without_metric(row, task, failed[row["device"]]) if row["device"] in failed else row
            for row in self._measured
        ]

    @cached_property
    def _measured(self) -> list[DeviceRow]:
        """The measurements of all devices, each with the position of its device."""
        if self.turn.work != "evaluate":
            return []
        positions = dict(zip(self.outcome.asked, self.turn.block, strict=True))
        return [
            {**row, "position": positions[device]}
            for device, metrics in self.outcome.metrics()
            for row in rows_of(self.stage.stages.task, self.turn.stage, device, metrics, seen=self.stage.seen)
        ]

    def _validation(self) -> dict[str, float]:
        """Return the mean by which training may stop early.

        A device whose training failed counts with the personal part that it has kept: without it, a model
        that fails on difficult devices would look better.
        """
        if not self.stage.stopping.depends_on(self.turn):
            return {}
        means = _means(self._measured, self.stage.stages.task, "validation")
        names = ("metric", "weight") if "metric" in means else ()
        return {f"validation_{name}": means[name] for name in names}

    def _facts(self) -> dict[str, Any]:
        work, start = self.orders[0].work, self.orders[0].start
        is_evaluation = isinstance(work, Evaluate)
        return {
            "stage": self.turn.stage,
            "work": self.turn.work,
            "round": self.turn.round,
            "final": self.turn.final,
            "loss": None if is_evaluation else self.outcome.mean("loss"),
            "start_loss": None if is_evaluation else self.outcome.mean("start_loss"),
            "personal_lr": None if is_evaluation or not start.personal else _rate(work.personal),
            "shared_lr": _rate(work.shared) if isinstance(work, Update) else None,
            "asked": list(self.outcome.asked),
            "heard": self.outcome.heard,
            "failed": self.outcome.failed,
            **({"left_out": self.outcome.left_out} if self.outcome.left_out else {}),
            "bytes": {"down": self.outcome.bytes_down, "up": self.outcome.bytes_up},
            **({} if self.stage.seen else {"seen": False}),
        }


def _rate(pace: Pace) -> float | None:
    return pace.lr if pace.epochs or pace.steps else None


def _means(rows: Sequence[DeviceRow], task: Task, split: str) -> dict[str, Any]:
    """Return the weighted means over the devices of an evaluation: of the loss and of all metrics."""
    own = [row for row in rows if row["split"] == split and row["weight"]]
    further = further_metrics(task)
    known = {name: mean for name in ("loss", "metric", *further) if (mean := _mean(own, name))}
    means: dict[str, Any] = {name: known[name]["mean"] for name in ("loss", "metric") if name in known}
    if means:
        headline = known["metric" if "metric" in known else "loss"]
        means |= {name: headline[name] for name in ("weight", "devices")}
    metrics = {name: known[name] for name in further if name in known}
    return {**means, "metrics": metrics} if metrics else means


def _mean(rows: Sequence[DeviceRow], name: str) -> dict[str, float] | None:
    """Return the weighted mean of a column over the rows that have it, with their weight and their number."""
    known = [(row[name], row["weight"]) for row in rows if row[name] is not None]
    found = combined_mean(known)
    return found and {"mean": found[0], "weight": found[1], "devices": len(known)}
