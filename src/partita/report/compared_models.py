"""The models that a comparison's tables have rows for, and the entries that describe one model or two."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from partita.protocol import Stage
from partita.report.tables import Entry, Interval, MeanStd
from partita.studies.results import CellResult, Results, Variant
from partita.studies.statistics import DeviceMetrics, mean_of, paired_difference

MetricsBySeed = Mapping[int, DeviceMetrics]


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


def mean_std(by_seed: MetricsBySeed) -> MeanStd:
    """Return the weighted mean over devices, averaged over seeds, with its standard deviation."""
    means = [mean_of(values) for values in by_seed.values()]
    return MeanStd(statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else None)


def interval(own: MetricsBySeed, other: MetricsBySeed, results: Results) -> Interval | None:
    """Return the paired difference of two models, on the seeds and devices that both have."""
    common = [seed for seed in own if seed in other]
    pair = (
        paired_difference([own[s] for s in common], [other[s] for s in common], results.direction)
        if common
        else None
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


def marked(models: Sequence[MetricsBySeed], results: Results) -> list[MeanStd]:
    """Return the means with the best one marked, and every one within one standard deviation of it.

    A mean over fewer devices or seeds than another is not marked: those that failed may be the hard ones.
    """
    sign = 1 if results.direction == "up" else -1
    means = [mean_std(model) for model in models]
    complete = [is_complete(model, models) for model in models]
    best = max(compress(means, complete), key=lambda mean: sign * mean.mean)
    threshold = sign * best.mean - (best.std or 0.0)
    return [
        replace(mean, is_best=is_whole and sign * mean.mean >= threshold)
        for mean, is_whole in zip(means, complete, strict=True)
    ]


def is_complete(model: MetricsBySeed, others: Sequence[MetricsBySeed]) -> bool:
    """Return whether no other model has a metric on more devices and seeds."""
    return _measured(model) == max(map(_measured, others))


def _measured(model: MetricsBySeed) -> int:
    return sum(map(len, model.values()))
