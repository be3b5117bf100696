"""Means of a metric over seeds, with the best ones marked."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from partita.report.differences import MetricsBySeed
from partita.report.ranking import Ranking
from partita.report.tables.entries import MeanStd
from partita.studies.statistics import mean_of


def mean_std(by_seed: MetricsBySeed) -> MeanStd:
    """Return the mean over seeds of the weighted means over devices, with its standard deviation."""
    return over_seeds([mean_of(values) for values in by_seed.values()])


def over_seeds(values: Sequence[float]) -> MeanStd:
    """Return the mean of a value over seeds, with its standard deviation if there are several."""
    return MeanStd(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def marked(models: Sequence[MetricsBySeed], ranking: Ranking) -> list[MeanStd]:
    """Return the means, those marked that are as good as the best of a ranking."""
    return [replace(mean_std(model), is_best=ranking.is_as_good(model)) for model in models]


def marked_note(of: str = "") -> str:
    """Return the sentence that explains the marks of a table, where there is a best one `of` each part."""
    return (
        f"Marked with *: the best{of}, and all that are not clearly worse: the 95 % interval of their paired "
        "difference from it holds zero."
    )


def seeds_text(models: Sequence[MetricsBySeed]) -> str:
    """Return over how many seeds the means of models are.

    >>> seeds_text([{1: {}}]), seeds_text([{1: {}, 2: {}}, {1: {}}])
    ('1 seed', '1 to 2 seeds, ± their standard deviation')
    """
    fewest, most = min(map(len, models)), max(map(len, models))
    if most == 1:
        return "1 seed"
    return f"{f'{fewest} to ' if fewest < most else ''}{most} seeds, ± their standard deviation"
