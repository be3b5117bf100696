"""The tables with a row for every method and personal part: the metric, the devices and the costs.

All show columns of one wide table, whose CSV is that of `methods`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.report.tables.columns import MethodColumns
from partita.report.tables.means import is_complete
from partita.report.tables.models import interval_notes
from partita.report.tables.table import Table, visible
from partita.studies.columns import COLUMNS
from partita.studies.results import Results

_DEVICES = ("worth_joining", "helped", "hurt", "same", "percentile", *(f"quartile{n}" for n in (1, 2, 3, 4)))
_TRAINING = ("rounds", "mb", "seconds", "rounds_to_reach", "mb_to_reach", "memory")


def method_tables(results: Results) -> list[Table]:
    """Return the tables `methods`, with the columns that are chosen, `devices` and `training`."""
    every = MethodColumns(results)
    better = {"up": "higher", "down": "lower"}[results.direction]
    whole = Table(
        name="methods",
        title=f"{results.split} {results.metric} after the last stage ({better} is better)".capitalize(),
        columns=every.headings(COLUMNS),
        rows=[every.row(place) for place in range(len(every.models))],
    )
    return [
        _methods(whole, every),
        _part(whole, every, _DEVICES, name="devices", title="Devices: who gains, and by how much data"),
        _part(whole, every, _TRAINING, name="training", title="Costs of training"),
    ]


def _methods(whole: Table, every: MethodColumns) -> Table:
    results = every.results
    table = replace(whole, shown=every.headings(results.columns))
    return replace(
        table,
        notes=[
            " ".join(filter(None, (_means(results), every.meaning(results.columns)))),
            *_incomplete(every),
            *interval_notes(visible(table).rows),
            *_unknown(every, results.columns),
            *results.notes,
        ],
    )


def _part(whole: Table, every: MethodColumns, names: Sequence[str], *, name: str, title: str) -> Table:
    """Return a table of its own with some of the columns."""
    part = visible(replace(whole, shown=every.headings(names)))
    return replace(part, name=name, title=title, notes=[every.meaning(names), *_unknown(every, names)])


def _means(results: Results) -> str:
    if "metric" not in results.columns:
        return ""
    over = "1 seed" if results.seeds == 1 else f"{results.seeds} seeds, ± their standard deviation"
    return (
        f"Weighted means over devices, averaged over {over}. Marked with *: the best mean, and every "
        "mean within one standard deviation of it."
    )


def _incomplete(every: MethodColumns) -> Iterator[str]:
    """Yield a note about the models that are not marked because devices or seeds are missing."""
    others = [model.by_seed for model in every.models]
    missing = [
        " ".join(filter(None, (model.title, model.variant[1])))
        for model in every.models
        if not is_complete(model.by_seed, others)
    ]
    if missing:
        yield f"Not marked, because some devices or seeds have no metric: {', '.join(missing)}."


def _unknown(every: MethodColumns, names: Sequence[str]) -> Iterator[str]:
    """Yield a note where it is not known when models reach the reference."""
    if not every.reaching.is_known and {"rounds_to_reach", "mb_to_reach"} & {*names}:
        yield (
            "It is not known when methods reach it: no finished run of it was evaluated during training. Set "
            "`evaluate.every`."
        )
