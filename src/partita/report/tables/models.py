"""The models that a comparison's tables have rows for, and the difference of two of them."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from partita.protocol import Stage
from partita.report.tables.entries import Entry, Interval
from partita.report.tables.means import MetricsBySeed
from partita.studies.results import CellResult, Results, Variant
from partita.studies.statistics import paired_difference
from partita.tasks.metrics import Direction

Cost = Literal["rounds", "sent", "seconds"]
"""A cost in the results of a cell."""


@dataclass(frozen=True)
class Model:
    """A model to compare: the last of a variant, or the one that each device serves."""

    variant: Variant
    title: str
    by_seed: MetricsBySeed
    is_served: bool = False

    def is_last_of(self, method: str | None) -> bool:
        """Return whether it is the last model of a method."""
        return self.variant[0] == method and not self.is_served


def models_of(results: Results) -> Iterator[Model]:
    """Yield the models of a comparison in the order of its tables."""
    for variant, runs in results.outcomes.items():
        title = results.titles[variant[0]]
        yield Model(variant, title, last(runs))
        if served := at_stage(runs, Stage.SERVED):
            yield Model(variant, f"{title}, chosen on validation", served, is_served=True)


def last(runs: Mapping[int, CellResult]) -> MetricsBySeed:
    """Return the metrics after the last stage."""
    return {seed: outcome.last for seed, outcome in runs.items()}


def at_stage(runs: Mapping[int, CellResult], stage: Stage) -> MetricsBySeed:
    """Return the metrics of one stage, for the seeds that have any."""
    return {seed: outcome.stages[stage] for seed, outcome in runs.items() if outcome.stages.get(stage)}


def cost_of(results: Results, variant: Variant, name: Cost) -> float:
    """Return the mean of a cost over seeds, including that of the training that a variant continues."""
    runs = [results.outcomes.get(each, {}) for each in (*results.before(variant), variant)]
    seeds = results.outcomes[variant]
    return statistics.fmean(sum(getattr(own[seed], name) for own in runs if seed in own) for seed in seeds)


def interval(own: MetricsBySeed, other: MetricsBySeed, direction: Direction) -> Interval | None:
    """Return the paired difference of two models, on the seeds and devices that both have."""
    common = [seed for seed in own if seed in other]
    pair = (
        paired_difference([own[s] for s in common], [other[s] for s in common], direction) if common else None
    )
    return pair and Interval(pair.value, pair.low, pair.high, seeds=pair.seeds)


def interval_notes(rows: Sequence[Sequence[Entry]]) -> list[str]:
    """Return what the intervals of a table cover, and what those over one or two seeds do not."""
    found = {entry.seeds for row in rows for entry in row if isinstance(entry, Interval)}
    notes = {
        1: "An interval over 1 seed covers other devices from the same distribution, not other seeds, which "
        "may differ by more: compare with `seeds=3` or above.",
        2: "An interval over 2 seeds covers other devices and other seeds, but 2 seeds tell little about how "
        "seeds differ: simulated, such intervals contain the true difference in 88 to 97 % of comparisons.",
        3: "An interval over 3 or more seeds covers other devices and other seeds like these.",
    }
    return [notes[seeds] for seeds in sorted({min(seeds, 3) for seeds in found})]
