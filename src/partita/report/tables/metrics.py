"""All metrics of a task side by side: for the models of a run, and for the methods of a comparison."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.protocol import Stage
from partita.report.differences import MetricsBySeed
from partita.report.ranking import Ranking
from partita.report.tables.entries import Cited, Entry, MeanStd
from partita.report.tables.means import marked, marked_note, mean_std, seeds_text
from partita.report.tables.models import ComparedModel, models_of
from partita.report.tables.table import Table
from partita.studies.results import Results
from partita.studies.statistics import DeviceMetrics
from partita.tasks.metrics import Direction
from partita.training.evaluation import Summary


def run_metrics(summary: Summary, models: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Return the weighted mean of every metric for each model of a run; no rows where there is one metric.

    Args:
        summary: names the metrics and their directions.
        models: title and statistics of each model.
    """
    directions = _directions(summary)
    rows: list[list[Entry]] = []
    counts: dict[str, dict[str, int]] = {name: {} for name in directions}
    for title, statistics in models:
        # A stage that failed has no statistics.
        found = {summary["metric"]: statistics, **statistics.get("metrics", {})}
        rows.append([title, *(found.get(name, {}).get("weighted_mean") for name in directions)])
        if "weighted_mean" in statistics:
            for name in directions:
                counts[name][title] = found.get(name, {}).get("devices", 0)
    return _table(
        directions,
        split=summary.get("split", "test"),
        columns=["model"],
        rows=rows,
        notes=["Weighted means over devices.", *_fewer(counts)],
    )


def _fewer(counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a note about every metric that some devices do not have, from its devices by model.

    >>> list(_fewer({"accuracy": {"FedAvg": 10, "FedAlt": 10}, "AUROC": {"FedAvg": 9, "FedAlt": 9}}))
    ['AUROC is defined on 9 of 10 devices.']
    >>> list(_fewer({"accuracy": {"FedAvg": 10, "FedAlt": 9}, "AUROC": {"FedAvg": 10, "FedAlt": 8}}))
    ['AUROC is undefined on some devices: FedAlt has it on 8 of 9.']
    """
    every = {title: max(own[title] for own in counts.values()) for own in counts.values() for title in own}
    for name, own in counts.items():
        fewer = {title: (count, every[title]) for title, count in own.items() if count < every[title]}
        if len(fewer) == len(own) and len(set(fewer.values())) == 1:
            yield "{} is defined on {} of {} devices.".format(name, *next(iter(fewer.values())))
        elif fewer:
            title, (count, devices) = next(iter(fewer.items()))
            yield f"{name} is undefined on some devices: {title} has it on {count} of {devices}."


def comparison_metrics(results: Results) -> Table:
    """Return every metric after the last stage for each method and personal part; no rows for one metric."""
    models = list(models_of(results))
    found = {name: [_by_seed(results, model, name) for model in models] for name in results.directions}
    columns = [_column(results, models, name, by_seed) for name, by_seed in found.items()]
    rows: list[list[Entry]] = []
    for model, own in zip(models, zip(*columns, strict=True), strict=False):
        citation = results.citations[model.variant[0]]
        rows.append([Cited(model.title, citation.key if citation else ""), model.variant[1], *own])
    over = seeds_text([model.by_seed for model in models])
    return _table(
        results.directions,
        split=results.split,
        columns=["method", "personal part"],
        rows=rows,
        notes=[
            f"Weighted means over devices, averaged over {over}. {marked_note(' of each metric')}",
            *_undefined(results.metric, found),
        ],
    )


def _column(
    results: Results, models: Sequence[ComparedModel], name: str, found: Sequence[MetricsBySeed]
) -> list[MeanStd | None]:
    """Return the means of one metric, the best marked; None for the models that have it on no device."""
    known = [by_seed for by_seed in found if by_seed]
    ranked = [
        by_seed for model, by_seed in zip(models, found, strict=True) if by_seed and not model.is_served
    ]
    reference = [by_seed for m, by_seed in zip(models, found, strict=True) if m.variant == results.reference]
    ranking = Ranking(ranked, results.directions[name], reference[0] if reference else {})
    means = iter(marked(known, ranking) if ranked else map(mean_std, known))
    return [next(means) if by_seed else None for by_seed in found]


def _by_seed(results: Results, model: ComparedModel, name: str) -> MetricsBySeed:
    """Return one metric of a model by seed and device, without the seeds on which no device has it."""
    found: dict[int, DeviceMetrics] = {}
    for seed, outcome in model.runs.items():
        at = Stage.SERVED if model.is_served else outcome.last_stage
        by_device = outcome.stages if name == results.metric else outcome.further.get(name, {})
        if by_device.get(at):
            found[seed] = by_device[at]
    return found


def _undefined(headline: str, found: Mapping[str, Sequence[MetricsBySeed]]) -> Iterator[str]:
    """Yield a note about every metric that fewer devices have than the headline metric."""
    counts = {name: [sum(map(len, by_seed.values())) for by_seed in own] for name, own in found.items()}
    for name, own in counts.items():
        if any(one < other for one, other in zip(own, counts[headline], strict=True)):
            yield f"{name} is undefined on some devices, which its means leave out."


def _directions(summary: Summary) -> Mapping[str, Direction]:
    """Return the direction of every metric; runs of older versions have recorded the headline metric's."""
    return summary.get("directions", {summary["metric"]: summary["direction"]})


def _table(
    directions: Mapping[str, Direction],
    *,
    split: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Entry]],
    notes: Sequence[str],
) -> Table:
    lower = [name for name, direction in directions.items() if direction == "down"]
    better = f"Lower is better for {', '.join(lower)}." if lower else "Higher is better."
    return Table(
        name="metrics",
        title=f"All metrics on the {split} split",
        columns=[*columns, *directions],
        rows=rows if len(directions) > 1 else [],
        notes=[notes[0], better, *notes[1:]],
    )
