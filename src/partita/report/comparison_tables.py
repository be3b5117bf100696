"""The tables of a comparison, after the paper's."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.durable import locked, replace_file
from partita.protocol import Stage
from partita.report.references import references
from partita.report.sheets import Cited, Entry, Interval, Rounded, Sheet, Spread, write_sheets
from partita.studies.cells import START, STATELESS
from partita.studies.compare import Comparison
from partita.studies.forecast import Forecast
from partita.studies.results import Outcome, Results, Row, collect
from partita.studies.statistics import Moved, Values, mean_of, moved, paired, worst_tenth

_PARTIAL = ("ft_part", "fedalt", "fedsim")
BySeed = Mapping[int, Values]


def write_tables(comparison: Comparison, failed: Mapping[str, str]) -> list[Sheet]:
    """Write the tables of all cells that are finished, with the papers to cite, and return them."""
    folder = comparison.folder / "tables"
    with locked(comparison.folder, wait=True):
        results = collect(comparison, failed)
        sheets = sheets_of(results)
        write_sheets(sheets, folder)
        papers = references({"pillutla2022", *results.cites.values()})
        replace_file(folder / "references.bib", papers.encode())
    return sheets


def expected_sheet(forecast: Forecast) -> Sheet:
    """Return what a comparison would run, and how long that takes."""
    rows: list[list[Entry]] = [
        [
            each.cell.name,
            each.cell.title or "pretraining",
            each.cell.partition,
            None if each.seconds is None else Rounded(each.seconds),
        ]
        for each in forecast.cells
    ]
    tuning = (
        f", and {_time(forecast.tuning)} for {forecast.trials} trials a method" if forecast.trials else ""
    )
    return Sheet(
        name="expected",
        title=f"{len(rows)} cells, about {_time(forecast.seconds)} by one process{tuning}",
        columns=["cell", "method", "personal part", "seconds"],
        rows=rows,
        notes=[] if all(row[-1] for row in rows) else ["No time is known of cells whose devices failed."],
    )


def _time(seconds: float) -> str:
    """Return a time as one reads it.

    >>> [_time(seconds) for seconds in (7.4, 150, 20_000)]
    ['7 seconds', '2 minutes', '5.6 hours']
    """
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def sheets_of(results: Results) -> list[Sheet]:
    """Return all tables that the results have something for."""
    made = [
        _methods(results),
        _partial(results),
        _finetuning(results),
        _stateless(results),
        _devices(results),
        _tuned(results),
    ]
    return [sheet for sheet in made if sheet.rows]


def _methods(results: Results) -> Sheet:
    """Return methods x partitions, with what each costs and how it compares with the baseline."""
    models = list(_models(results))
    spreads = _marked([_spread(model.by_seed) for model in models], results)
    rows: list[list[Entry]] = []
    for model, spread in zip(models, spreads, strict=True):
        row, runs = model.row, results.outcomes[model.row]
        costs = [_costs(results, row, seed, outcome) for seed, outcome in runs.items()]
        rounds, sent, seconds = (statistics.fmean(column) for column in zip(*costs, strict=True))
        is_baseline = row[0] == results.baseline and not model.is_served
        rows.append([
            Cited(model.title, results.cites[row[0]]),
            row[1],
            max(outcome.kept for outcome in runs.values()),
            spread,
            round(rounds),
            Rounded(sent / 1e6),
            Rounded(seconds),
            None if is_baseline else _interval(model.by_seed, _baseline(results, row), results),
        ])  # fmt: skip
    columns = ["method", "personal part", "kept on a device", results.metric, "rounds", "MB both ways"]
    over = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds, ± their standard deviation"
    return Sheet(
        name="methods",
        title=f"{_judged(results).capitalize()} after the last stage ({_better(results)} is better)",
        columns=[*columns, "device-seconds", f"better than {results.titles[results.baseline]}"],
        rows=rows,
        notes=[
            f"Means over devices by weight, and over {over}. Marked: the best, and all within one standard "
            "deviation of it. Better than: paired over devices and seeds, of the same personal part where "
            "both have it, with the 95 % interval of a bootstrap over devices and seeds. Rounds, bytes and "
            "seconds are those of training, with pretraining where a method begins from it. Kept on a "
            "device: how many numbers, parameters and others, after the last stage.",
            *results.notes,
        ],
    )


def _baseline(results: Results, row: Row) -> BySeed:
    """Return what a row is paired with: the baseline with the same personal part, or its first."""
    own = results.of(results.baseline, row[1])
    return _last(
        own or next((runs for (m, _), runs in results.outcomes.items() if m == results.baseline), {})
    )


def _partial(results: Results) -> Sheet:
    """Return FT (part.) against FedAlt against FedSim, a row a partition."""
    known = [method for method in _PARTIAL if any(row[0] == method for row in results.outcomes)]
    rows: list[list[Entry]] = []
    for partition in dict.fromkeys(row[1] for row in results.outcomes if row[0] in known):
        found = {m: results.outcomes[m, partition] for m in known if (m, partition) in results.outcomes}
        marked = _marked([_spread(_last(runs)) for runs in found.values()], results)
        spreads = dict(zip(found, marked, strict=True))
        rows.append([partition, *(spreads.get(method) for method in known)])
    return Sheet(
        name="fedalt_fedsim",
        title=f"Partial personalization, after the last stage: {_judged(results)}",
        columns=["personal part", *(results.titles[method] for method in known)],
        rows=rows if len(known) > 1 else [],
    )


def _finetuning(results: Results) -> Sheet:
    """Return what the final finetuning does."""
    rows: list[list[Entry]] = []
    for row, runs in results.outcomes.items():
        before, after = (_stage(runs, stage) for stage in (Stage.PERSONALISED, Stage.FINETUNED))
        if before and after and row[0] != START:
            pair = [_spread(before), _spread(after), _interval(after, before, results)]
            rows.append([results.titles[row[0]], row[1], *pair])
    return Sheet(
        name="finetuning",
        title=f"The final finetuning: {_judged(results)}",
        columns=["method", "personal part", "before", "after", "better"],
        rows=rows,
    )


def _stateless(results: Results) -> Sheet:
    """Return what is lost where devices keep nothing between rounds."""
    rows: list[list[Entry]] = []
    for (method, partition), runs in results.outcomes.items():
        other = results.outcomes.get((method + STATELESS, partition))
        if other:
            kept, without = _last(runs), _last(other)
            pair = [_spread(kept), _spread(without), _interval(without, kept, results)]
            rows.append([results.titles[method], partition, *pair])
    return Sheet(
        name="stateless",
        title=f"Devices with and without a state, after the last stage: {_judged(results)}",
        columns=["method", "personal part", "stateful", "stateless", "stateless better"],
        rows=rows,
    )


def _devices(results: Results) -> Sheet:
    """Return whom personalization helps and hurts, and how those at the bottom fare."""
    reference = _last(results.of(results.reference))
    rows: list[list[Entry]] = []
    for model in _models(results):
        counts = [
            moved(values, reference[seed], results.direction)
            for seed, values in model.by_seed.items()
            if seed in reference
        ]
        lows = [worst_tenth(values, results.direction) for values in model.by_seed.values()]
        rows.append([model.title, model.row[1], *_mean_counts(counts), statistics.fmean(lows)])
    return Sheet(
        name="devices",
        title="Devices helped and hurt, means over seeds",
        columns=["method", "personal part", "helped", "hurt", "same", f"{results.metric} of the worst tenth"],
        rows=rows,
        notes=[
            f"Helped and hurt are strict, against {results.titles[results.reference]} of the same seed. The "
            "worst tenth: what nine devices of ten reach."
        ],
    )


def _tuned(results: Results) -> Sheet:
    """Return the values that methods were tuned to."""
    rows: list[list[Entry]] = [
        [results.titles[method], partition, key, str(value)]
        for (method, partition), values in results.tuned.items()
        for key, value in values.items()
    ]
    return Sheet(
        name="tuned",
        title="Values that validation rows chose, on the first seed",
        columns=["method", "personal part", "key", "value"],
        rows=rows,
    )


@dataclass(frozen=True)
class _Model:
    """A model that is compared: a row's last, or the one that its devices chose to serve."""

    row: Row
    title: str
    by_seed: BySeed
    is_served: bool = False


def _models(results: Results) -> Iterator[_Model]:
    for row, runs in results.outcomes.items():
        title = results.titles[row[0]]
        yield _Model(row, title, _last(runs))
        if served := _stage(runs, Stage.SERVED):
            yield _Model(row, f"{title}, chosen on validation", served, is_served=True)


def _mean_counts(counts: Sequence[Moved]) -> list[Entry]:
    if not counts:
        return [None, None, None]
    named = ("helped", "hurt", "same")
    return [Rounded(statistics.fmean(getattr(count, name) for count in counts)) for name in named]


def _last(runs: Mapping[int, Outcome]) -> BySeed:
    return {seed: outcome.last for seed, outcome in runs.items()}


def _stage(runs: Mapping[int, Outcome], stage: Stage) -> BySeed:
    return {seed: outcome.stages[stage] for seed, outcome in runs.items() if outcome.stages.get(stage)}


def _spread(by_seed: BySeed) -> Spread:
    means = [mean_of(values) for values in by_seed.values()]
    return Spread(statistics.fmean(means), statistics.stdev(means) if len(means) > 1 else None)


def _interval(own: BySeed, other: BySeed, results: Results) -> Interval | None:
    common = [seed for seed in own if seed in other]
    pair = paired([own[s] for s in common], [other[s] for s in common], results.direction) if common else None
    return pair and Interval(pair.value, pair.low, pair.high)


def _marked(spreads: Sequence[Spread], results: Results) -> list[Spread]:
    """Return the same with the best marked, and all within one standard deviation of it."""
    sign = 1 if results.direction == "up" else -1
    best = max(spreads, key=lambda spread: sign * spread.mean)
    least = sign * best.mean - (best.std or 0.0)
    return [Spread(one.mean, one.std, is_best=sign * one.mean >= least) for one in spreads]


def _costs(results: Results, row: Row, seed: int, outcome: Outcome) -> tuple[float, float, float]:
    """Return rounds, bytes and seconds of a cell, with those of the start where it begins from there."""
    start = results.of(START).get(seed)
    both = [outcome, start] if row in results.begin_pretrained and start else [outcome]
    return sum(o.rounds for o in both), sum(o.sent for o in both), sum(o.seconds for o in both)


def _judged(results: Results) -> str:
    return f"{results.split} {results.metric}"


def _better(results: Results) -> str:
    return "higher" if results.direction == "up" else "lower"
