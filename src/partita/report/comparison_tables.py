"""The tables of a comparison, modeled on the paper's."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

from partita.durable import locked, replace_file
from partita.methods import registry
from partita.protocol import Stage
from partita.report.command_tables import trials_table
from partita.report.references import references
from partita.report.tables import Cited, Entry, Interval, MeanStd, Rounded, Table, write_tables
from partita.runs.folder import RunFolder
from partita.studies.cells import START, STATELESS
from partita.studies.comparison import Comparison, first_seed
from partita.studies.results import CellResult, Results, Variant, collect
from partita.studies.statistics import (
    DeviceCounts,
    DeviceMetrics,
    count_helped,
    mean_of,
    paired_difference,
    worst_percentile,
)

MetricsBySeed = Mapping[int, DeviceMetrics]


def write_comparison_tables(comparison: Comparison, failed: Mapping[str, str]) -> list[Table]:
    """Write the tables over all finished runs, `references.bib`, and the tables of tuning trials.

    Returns:
        The tables of the comparison.
    """
    folder = RunFolder(comparison.folder).tables_folder
    with locked(comparison.folder, wait=True):
        results = collect(comparison, failed)
        tables = comparison_tables(results)
        write_tables(tables, folder)
        papers = [registry.find(registry.DEFAULT).citation, *results.citations.values()]
        replace_file(folder / "references.bib", references(papers).encode())
        for cell in first_seed(comparison.cells):
            if tuned := comparison.trials_of(cell):
                write_tables([trials_table(tuned)], comparison.trials_folder(cell))
    return tables


def comparison_tables(results: Results) -> list[Table]:
    """Return all tables that are not empty."""
    tables = [
        _methods(results),
        _partial(results),
        _finetuning(results),
        _stateless(results),
        _devices(results),
        _tuned(results),
    ]
    return [_with_failures(table, results) for table in tables if table.rows]


def _with_failures(table: Table, results: Results) -> Table:
    """Return a table that names every cell and stage that failed, and so is not in it."""
    missing = [note for note in results.failures if note not in table.notes]
    return replace(table, notes=[*table.notes, *missing])


def _methods(results: Results) -> Table:
    """Return every method and personal part: its metric, its costs and its gain over the baseline."""
    models = list(_models(results))
    means = _marked([model.by_seed for model in models], results)
    rows: list[list[Entry]] = []
    for model, mean in zip(models, means, strict=True):
        variant, runs = model.variant, results.outcomes[model.variant]
        costs = [_costs(results, variant, seed, outcome) for seed, outcome in runs.items()]
        rounds, sent, seconds = (statistics.fmean(column) for column in zip(*costs, strict=True))
        is_baseline = variant[0] == results.baseline and not model.is_served
        rows.append([
            Cited(model.title, citation.key if (citation := results.citations[variant[0]]) else ""),
            variant[1],
            max(outcome.kept for outcome in runs.values()),
            mean,
            round(rounds),
            Rounded(sent / 1e6),
            Rounded(seconds),
            None if is_baseline else _interval(model.by_seed, _baseline(results, variant), results),
        ])  # fmt: skip
    columns = [
        "method",
        "personal part",
        "values kept on a device",
        results.metric,
        "rounds",
        "MB up and down",
    ]
    over = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds, ± their standard deviation"
    return Table(
        name="methods",
        title=f"{_metric(results).capitalize()} after the last stage ({_better(results)} is better)",
        columns=[*columns, "device-seconds", f"difference from {results.titles[results.baseline]}"],
        rows=rows,
        notes=[
            f"Weighted means over devices, averaged over {over}. Marked with *: the best mean, and every "
            "mean within one standard deviation of it. Difference: paired over devices and seeds, "
            "positive if better, for the same personal part if both methods have it, with its 95 % "
            "confidence interval. Rounds, traffic and seconds are those of training, including pretraining "
            "for methods that begin from it. Values kept on a device: personal parameters and any other "
            "state of the method, after the last stage. Device-seconds: processor time of the visits.",
            *_incomplete(models),
            *_interval_notes(rows),
            *results.notes,
        ],
    )


def _incomplete(models: Sequence["_Model"]) -> Iterator[str]:
    """Yield a note about the models that are not marked because devices or seeds are missing."""
    others = [model.by_seed for model in models]
    missing = [
        " ".join(filter(None, (model.title, model.variant[1])))
        for model in models
        if not _is_complete(model.by_seed, others)
    ]
    if missing:
        yield f"Not marked, because some devices or seeds have no metric: {', '.join(missing)}."


def _baseline(results: Results, variant: Variant) -> MetricsBySeed:
    """Return the baseline with the same personal part as a variant, or its first personal part."""
    own = results.of(results.baseline, variant[1])
    every = [runs for (method, _), runs in results.outcomes.items() if method == results.baseline]
    return _last(own or next(iter(every), {}))


def _partial(results: Results) -> Table:
    """Return the paper's table of methods for one and the same personal part, a row per part."""
    compared = {variant[0] for variant in results.outcomes}
    known = [
        name for name, method in registry.every().items() if method.in_partial_table and name in compared
    ]
    rows: list[list[Entry]] = []
    for partition in dict.fromkeys(part for method, part in results.outcomes if method in known):
        found = {m: results.outcomes[m, partition] for m in known if (m, partition) in results.outcomes}
        marked = _marked([_last(runs) for runs in found.values()], results)
        means = dict(zip(found, marked, strict=True))
        rows.append([partition, *(means.get(method) for method in known)])
    return Table(
        name="partial",
        title=f"Partial personalization after the last stage: {_metric(results)}",
        columns=["personal part", *(results.titles[method] for method in known)],
        rows=rows if len(known) > 1 else [],
    )


def _finetuning(results: Results) -> Table:
    """Return the effect of the final fine-tuning."""
    rows: list[list[Entry]] = []
    for (method, partition), runs in results.outcomes.items():
        before, after = (_stage(runs, stage) for stage in (Stage.PERSONALIZED, Stage.FINETUNED))
        if before and after and method != START:
            pair = [_mean_std(before), _mean_std(after), _interval(after, before, results)]
            rows.append([results.titles[method], partition, *pair])
    return Table(
        name="finetuning",
        title=f"Final fine-tuning: {_metric(results)}",
        columns=["method", "personal part", "before", "after", "improvement"],
        rows=rows,
        notes=[
            "Improvement: paired over devices and seeds, with its 95 % confidence interval.",
            *_interval_notes(rows),
        ],
    )


def _stateless(results: Results) -> Table:
    """Return the effect of devices that keep no personal part between rounds."""
    rows: list[list[Entry]] = []
    for (method, partition), runs in results.outcomes.items():
        other = results.outcomes.get((method + STATELESS, partition))
        if other:
            kept, without = _last(runs), _last(other)
            pair = [_mean_std(kept), _mean_std(without), _interval(without, kept, results)]
            rows.append([results.titles[method], partition, *pair])
    return Table(
        name="stateless",
        title=f"Stateful and stateless devices after the last stage: {_metric(results)}",
        columns=["method", "personal part", "stateful", "stateless", "difference"],
        rows=rows,
        notes=[
            "Difference: paired over devices and seeds, with its 95 % confidence interval.",
            *_interval_notes(rows),
        ],
    )


def _devices(results: Results) -> Table:
    """Return how many devices each model helps and hurts, and its 10th percentile over devices."""
    reference = _last(results.of(results.reference))
    percentile = {"up": "10th percentile", "down": "90th percentile"}[results.direction]
    rows: list[list[Entry]] = []
    for model in _models(results):
        counts = [
            count_helped(values, reference[seed], results.direction)
            for seed, values in model.by_seed.items()
            if seed in reference
        ]
        lows = [worst_percentile(values, results.direction) for values in model.by_seed.values()]
        rows.append([model.title, model.variant[1], *_mean_counts(counts), statistics.fmean(lows)])
    return Table(
        name="devices",
        title="Devices helped and hurt, averaged over seeds",
        columns=["method", "personal part", "helped", "hurt", "same", f"{percentile} of {results.metric}"],
        rows=rows,
        notes=[
            "Helped and hurt: devices with a strictly better or worse metric than under "
            f"{results.titles[results.reference]} with the same seed. The {percentile} is over devices: 9 of "
            "10 devices reach it."
        ],
    )


def _tuned(results: Results) -> Table:
    """Return the settings that tuning has chosen for each method."""
    rows: list[list[Entry]] = [
        [results.titles[method], partition, key, str(value)]
        for (method, partition), values in results.tuned.items()
        for key, value in values.items()
    ]
    return Table(
        name="tuned",
        title="Settings chosen on the validation split of the first seed",
        columns=["method", "personal part", "key", "value"],
        rows=rows,
    )


@dataclass(frozen=True)
class _Model:
    """A model to compare: the last of a variant, or the one that each device serves."""

    variant: Variant
    title: str
    by_seed: MetricsBySeed
    is_served: bool = False


def _models(results: Results) -> Iterator[_Model]:
    for variant, runs in results.outcomes.items():
        title = results.titles[variant[0]]
        yield _Model(variant, title, _last(runs))
        if served := _stage(runs, Stage.SERVED):
            yield _Model(variant, f"{title}, chosen on validation", served, is_served=True)


def _mean_counts(counts: Sequence[DeviceCounts]) -> list[Entry]:
    if not counts:
        return [None, None, None]
    named = ("helped", "hurt", "same")
    return [Rounded(statistics.fmean(getattr(count, name) for count in counts)) for name in named]


def _last(runs: Mapping[int, CellResult]) -> MetricsBySeed:
    return {seed: outcome.last for seed, outcome in runs.items()}


def _stage(runs: Mapping[int, CellResult], stage: Stage) -> MetricsBySeed:
    return {seed: outcome.stages[stage] for seed, outcome in runs.items() if outcome.stages.get(stage)}


def _mean_std(by_seed: MetricsBySeed) -> MeanStd:
    means = [mean_of(values) for values in by_seed.values()]
    return MeanStd(statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else None)


def _interval(own: MetricsBySeed, other: MetricsBySeed, results: Results) -> Interval | None:
    common = [seed for seed in own if seed in other]
    pair = (
        paired_difference([own[s] for s in common], [other[s] for s in common], results.direction)
        if common
        else None
    )
    return pair and Interval(pair.value, pair.low, pair.high, seeds=pair.seeds)


def _interval_notes(rows: Sequence[Sequence[Entry]]) -> list[str]:
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


def _marked(models: Sequence[MetricsBySeed], results: Results) -> list[MeanStd]:
    """Return the means with the best one marked, and every one within one standard deviation of it.

    A mean over fewer devices or seeds than another is not marked: those that failed may be the hard ones.
    """
    sign = 1 if results.direction == "up" else -1
    means = [_mean_std(model) for model in models]
    complete = [_is_complete(model, models) for model in models]
    best = max(compress(means, complete), key=lambda mean: sign * mean.mean)
    threshold = sign * best.mean - (best.std or 0.0)
    return [
        replace(mean, is_best=is_complete and sign * mean.mean >= threshold)
        for mean, is_complete in zip(means, complete, strict=True)
    ]


def _is_complete(model: MetricsBySeed, others: Sequence[MetricsBySeed]) -> bool:
    """Return whether no other model has a metric on more devices and seeds."""
    return _measured(model) == max(map(_measured, others))


def _measured(model: MetricsBySeed) -> int:
    return sum(map(len, model.values()))


def _costs(results: Results, variant: Variant, seed: int, outcome: CellResult) -> tuple[float, float, float]:
    """Return rounds, bytes and seconds of a run, including those of the training that it continues."""
    before = [results.outcomes.get(earlier, {}).get(seed) for earlier in results.before(variant)]
    every = [outcome, *filter(None, before)]
    return sum(o.rounds for o in every), sum(o.sent for o in every), sum(o.seconds for o in every)


def _metric(results: Results) -> str:
    return f"{results.split} {results.metric}"


def _better(results: Results) -> str:
    return "higher" if results.direction == "up" else "lower"
