"""Means of a metric over seeds, with the best one marked."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

from partita.report.tables.entries import MeanStd
from partita.studies.statistics import DeviceMetrics, mean_of
from partita.tasks.metrics import Direction

MetricsBySeed = Mapping[int, DeviceMetrics]


def mean_std(by_seed: MetricsBySeed) -> MeanStd:
    """Return the mean over seeds of the weighted means over devices, with its standard deviation."""
    means = [mean_of(values) for values in by_seed.values()]
    return MeanStd(statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else None)


def marked(models: Sequence[MetricsBySeed], direction: Direction) -> list[MeanStd]:
    """Return the means with the best one marked, and every one within one standard deviation of it.

    A mean over fewer devices or seeds than another is not marked: those that failed may be the hard ones.
    """
    sign = 1 if direction == "up" else -1
    means = [mean_std(model) for model in models]
    complete = [is_complete(model, models) for model in models]
    best = max(compress(means, complete), key=lambda mean: sign * mean.mean)
    threshold = sign * best.mean - (best.std or 0.0)
    return [
        replace(mean, is_best=whole and sign * mean.mean >= threshold)
        for mean, whole in zip(means, complete, strict=True)
    ]


def is_complete(model: MetricsBySeed, others: Sequence[MetricsBySeed]) -> bool:
    """Return whether no other model has a metric on more devices and seeds."""
    return measured(model) == max(map(measured, others))


def measured(model: MetricsBySeed) -> int:
    """Return on how many devices a model has the metric, summed over seeds."""
    return sum(map(len, model.values()))
