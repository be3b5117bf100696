"""Early stopping: the best round of a stage by its validation metric, and when its training stops.

The decision depends only on the lines of `rounds.jsonl`, so a resumed run repeats it from there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from partita.tasks.metrics import Direction
from partita.training.evaluation import Mean, combined_mean
from partita.training.plan import Turn

NO_MEASUREMENT = "no device had a metric on its validation rows"
"""The reason why a stage with patience has no best round."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The best round so far, and whether training stops.

    >>> metrics = {10: 0.5, 20: 0.8, 30: 0.8, 40: 0.7}
    >>> decision = Decision(patience=20, direction="up")
    >>> for round, metric in metrics.items():
    ...     decision = decision.after(round, (metric, 100))
    >>> decision.best, decision.stops
    (20, True)
    """

    patience: int
    """Rounds without a better metric after which training stops; 0: never."""
    direction: Direction
    round: int = 0
    """Training rounds before the last measurement."""
    best: int | None = None
    """Training rounds before the best measurement, the first one in a tie; None before the first metric."""
    mean: Mean | None = None
    """The best metric, and the weight of the devices that it was measured on."""

    def after(self, round: int, mean: Mean | None) -> "Decision":
        """Return the decision after one more measurement; without a metric it is not better.

        Only metrics of the same devices can be compared. A measurement with less weight than the best one
        lacks some of its devices and is never better; one with more weight has further devices and always is.
        """
        if mean is None or not self._is_better(*mean):
            return replace(self, round=round)
        return replace(self, round=round, best=round, mean=mean)

    @property
    def stops(self) -> bool:
        """Whether the metric has not improved for `patience` rounds."""
        return bool(self.patience) and self.best is not None and self.round - self.best >= self.patience

    def _is_better(self, metric: float, weight: float) -> bool:
        if self.mean is None:
            return True
        best, best_weight = self.mean
        if weight != best_weight:
            return weight > best_weight
        return metric > best if self.direction == "up" else metric < best


class Stopping:
    """The early stopping of one stage; grows in place with the stage's rounds.

    Args:
        patience: see `Decision`.
        direction: the direction in which the metric is better.
        turns: all planned rounds of the stage.
    """

    def __init__(self, patience: int, direction: Direction, turns: Sequence[Turn] = ()) -> None:
        self.decision = Decision(patience=patience, direction=direction)
        self._training = [turn for turn in turns if not turn.final]
        self._planned = sum(turn.work == "update" for turn in turns)
        # An evaluation of many devices takes several rounds: the last of them completes the measurement.
        self._last_blocks = {turn.round: turn.number for turn in self._training if turn.work == "evaluate"}
        self._blocks: list[Mean] = []

    @property
    def patience(self) -> int:
        """Rounds without a better metric after which training stops; 0: never."""
        return self.decision.patience

    @property
    def best(self) -> int | None:
        """Training rounds before the best measurement so far, None where there is none."""
        return self.decision.best

    def depends_on(self, turn: Turn) -> bool:
        """Return whether a round is an evaluation that decides when training stops."""
        return bool(self.patience) and turn.work == "evaluate" and not turn.final

    def add(self, turn: Turn, line: Mapping[str, Any]) -> None:
        """Add a round, in place, given its line of `rounds.jsonl`."""
        if not self.depends_on(turn):
            return
        if "validation_metric" in line:
            self._blocks.append((line["validation_metric"], line["validation_weight"]))
        if self._last_blocks[turn.round] == turn.number:
            self.decision = self.decision.after(turn.round, combined_mean(self._blocks))
            self._blocks.clear()

    def replay(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add the committed rounds of the stage, in place, given all of their lines in order."""
        training = (line for line in lines if not line["final"])
        for turn, line in zip(self._training, training, strict=False):
            self.add(turn, line)

    def skips(self, turn: Turn) -> bool:
        """Return whether training has stopped before a turn of the stage."""
        if turn.final or not self.decision.stops:
            return False
        return turn.number > self._last_blocks[self.decision.round]

    def record(self) -> dict[str, Any]:
        """Return the outcome for `summary.json`."""
        return {
            "planned_rounds": self._planned,
            "rounds": self.decision.round,
            "best_round": self.best,
            "stopped_early": self.decision.stops and self.decision.round < self._planned,
        }
