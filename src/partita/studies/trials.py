"""A trial of some values: what it gave, and giving it up where it is hopeless."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.progress.bar import Tick
from partita.progress.watchers import nobody
from partita.report.sheets import Entry, Sheet, Spread
from partita.training import pipeline
from partita.training.evaluation import DeviceRow as Row
from partita.training.evaluation import weighted_mean


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One choice of values, and what it gave."""

    number: int
    choice: Mapping[str, Any]
    value: float | None
    """The metric on validation rows after the last stage; None where the trial was given up or failed."""
    said: str
    """How it ended."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found."""

    metric: str
    trials: Sequence[Trial]
    best: Trial


class Hopeless(Exception):
    """A trial is given up."""


@dataclass
class Watch:
    """Watches a trial, and gives it up where it is hopeless."""

    asked: Any
    number: int
    count: int
    tick: Tick
    looks: int = 0
    """How often its models are judged on their way."""
    told: pipeline.RoundCallback = nobody
    """Who else is told of its rounds."""
    stage: str = ""
    """The stage of the last round."""
    _seen: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, line: Row, done: int, total: int) -> None:
        """Take note of a round; raises `Hopeless`."""
        self.told(line, done, total)
        self.stage = line["stage"]
        self.tick(self.number + done / total, self.count, f"trial {self.number}, {100 * done // total} %")
        if line["work"] == "evaluate":
            self._seen += [(line["metric"], line["weight"])] if "metric" in line else []
        elif self._seen:
            metrics, weights = zip(*self._seen, strict=True)
            self._seen.clear()
            self.asked.report(weighted_mean(metrics, weights), done)
            if self.asked.should_prune():
                raise Hopeless(f"given up after {done} of {total} rounds")


def trials_sheet(tuned: Tuned) -> Sheet:
    """Return all trials, the best one marked."""
    keys = list(tuned.best.choice)
    rows: list[list[Entry]] = [
        [
            str(trial.number),
            *(str(trial.choice[key]) for key in keys),
            None if trial.value is None else Spread(trial.value, is_best=trial is tuned.best),
            trial.said,
        ]
        for trial in tuned.trials
    ]
    return Sheet(
        name="trials",
        title=f"Validation {tuned.metric} of {len(rows)} trials",
        columns=["trial", *keys, tuned.metric, "ended"],
        rows=rows,
    )
