"""The models of a comparison: the metric of each by seed and device, its costs, and what it lacks."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from partita.protocol import Stage
from partita.report.differences import Difference, MetricsBySeed, counted, difference, mean_over_seeds
from partita.report.ranking import Ranking
from partita.report.tables.entries import Entry, Interval
from partita.studies.results import CellResult, Results, Variant, listed
from partita.tasks.metrics import Direction

Cost = Literal["rounds", "sent", "seconds"]
"""A cost in the results of a cell."""


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """A model of a comparison: the last of a variant, or the one that each device serves."""

    variant: Variant
    title: str
    """The method."""
    by_seed: MetricsBySeed
    runs: Mapping[int, CellResult]
    """The results of its runs."""
    rounds: int
    """Rounds of training, including those that it continues; a mean over seeds, as all costs."""
    sent: float
    """Bytes up and down of all of its training."""
    seconds: float
    """Processor time of all of its training."""
    trains_alone: bool = False
    """Whether its devices never exchange anything."""
    is_served: bool = False

    @property
    def name(self) -> str:
        """The method and the personal part."""
        return f"{self.title} ({self.variant[1]})" if self.variant[1] else self.title

    @cached_property
    def mean(self) -> float:
        """The mean of its metric over devices and seeds."""
        return mean_over_seeds(self.by_seed)

    @property
    def kept(self) -> int:
        """Largest number of values that a device keeps after the last stage."""
        return max(outcome.kept for outcome in self.runs.values())

    @property
    def is_finetuned(self) -> bool:
        """Whether its last stage is the final fine-tuning."""
        return all(outcome.last_stage == Stage.FINETUNED for outcome in self.runs.values())

    def is_last_of(self, method: str) -> bool:
        """Return whether it is the last model of a method."""
        return self.variant[0] == method and not self.is_served

    def difference_from(self, other: "ComparedModel", direction: Direction) -> Difference | None:
        """Return the paired difference from another model, None without a device in common."""
        return difference(self.by_seed, other.by_seed, direction)


def models_of(results: Results) -> Iterator[ComparedModel]:
    """Yield the models of a comparison in the order of its tables."""
    for variant, runs in results.outcomes.items():
        yield _model(results, variant, last(runs))
        if served := at_stage(runs, Stage.SERVED):
            yield _model(results, variant, served, is_served=True)


def _model(
    results: Results, variant: Variant, by_seed: MetricsBySeed, *, is_served: bool = False
) -> ComparedModel:
    return ComparedModel(
        variant=variant,
        title=results.titles[variant[0]] + (", chosen on validation" if is_served else ""),
        by_seed=by_seed,
        runs=results.outcomes[variant],
        rounds=round(cost_of(results, variant, "rounds")),
        sent=cost_of(results, variant, "sent"),
        seconds=cost_of(results, variant, "seconds"),
        trains_alone=variant[0] == results.alone,
        is_served=is_served,
    )


def last(runs: Mapping[int, CellResult]) -> MetricsBySeed:
    """Return the metrics after the last stage."""
    return {seed: outcome.last for seed, outcome in runs.items()}


def last_unseen(runs: Mapping[int, CellResult]) -> MetricsBySeed:
    """Return the metrics of the same model on devices that training has not seen, where there are any."""
    return {seed: outcome.last_unseen for seed, outcome in runs.items() if outcome.last_unseen}


def at_stage(runs: Mapping[int, CellResult], stage: Stage) -> MetricsBySeed:
    """Return the metrics of one stage, for the seeds that have any."""
    return {seed: outcome.stages[stage] for seed, outcome in runs.items() if outcome.stages.get(stage)}


def reference_of(results: Results) -> MetricsBySeed:
    """Return the metrics of the reference; empty if it has no result."""
    return last(results.of(*results.reference))


def ranking_of(models: Iterable[ComparedModel], results: Results) -> Ranking:
    """Return the ranking of models after their last stage."""
    own = [model.by_seed for model in models if not model.is_served]
    return Ranking(own, results.direction, reference_of(results))


def cost_of(results: Results, variant: Variant, name: Cost) -> float:
    """Return the mean of a cost over seeds, including that of the training that a variant continues."""
    runs = [results.outcomes.get(each, {}) for each in (*results.before(variant), variant)]
    seeds = results.outcomes[variant]
    return statistics.fmean(sum(getattr(own[seed], name) for own in runs if seed in own) for seed in seeds)


def missing_notes(models: Sequence[ComparedModel], ranking: Ranking) -> Iterator[str]:
    """Yield sentences that name the models without a result on some seeds, and on some devices."""
    seeds = len(ranking.seeds)
    unranked = [model for model in models if not ranking.is_ranked(model.by_seed)]
    if unranked:
        names = [f"{one.name} (has {len(one.by_seed)} of {seeds})" for one in unranked]
        yield f"Not ranked, because seeds are missing: {listed(names)}."
    every: dict[int, set[str]] = {}
    for model in models:
        for seed, values in model.by_seed.items():
            every.setdefault(seed, set()).update(values)
    fewer = {
        model.name: max(len(every[seed]) - len(values) for seed, values in model.by_seed.items())
        for model in models
    }
    names = [f"{name} (lacks {counted(count, 'device')})" for name, count in fewer.items() if count]
    if names:
        yield f"No metric on some devices, so compared on the others: {listed(names)}."


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
