"""A trial of some values: what it gave, and giving it up where it is hopeless."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore
from partita.training import loop as pipeline
from partita.training.evaluation import Row, weighted_mean


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
    tick: OnProgress
    looks: int = 0
    """How often its models are judged on their way."""
    told: pipeline.Watch = ignore
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


def trials_from(values: Mapping[str, Any]) -> Tuned:
    """Return a search's trials from the values of `dataclasses.asdict`."""
    trials = [Trial(**trial) for trial in values["trials"]]
    return Tuned(metric=values["metric"], trials=trials, best=Trial(**values["best"]))
