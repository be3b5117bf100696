"""The tables with a row for every method and personal part: the metric, the devices and the costs.

All show columns of one wide table, whose CSV is that of `methods`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.report.tables.columns import FIRST, MethodColumns
from partita.report.tables.means import marked_note, seeds_text
from partita.report.tables.models import interval_notes, missing_notes
from partita.report.tables.table import Table, visible
from partita.studies.columns import COLUMNS
from partita.studies.results import Results

_QUARTILES = tuple(f"quartile{n}" for n in (1, 2, 3, 4))
_DEVICES = ("worth_joining", "helped", "hurt", "same", "percentile", *_QUARTILES)
_TRAINING = ("rounds", "mb", "seconds", "rounds_to_reach", "mb_to_reach", "memory")


def method_tables(results: Results) -> list[Table]:
    """Return the tables `methods`, with the columns that are chosen, `devices` and `training`."""
    every = MethodColumns(results)
    better = {"up": "higher", "down": "lower"}[results.direction]
    title = f"{results.split} {results.metric} after the last stage ({better} is better)"
    whole = Table(
        name="methods",
        title=title[:1].upper() + title[1:],
        columns=every.headings(COLUMNS),
        rows=[every.row(place) for place in range(len(every.models))],
    )
    return [
        _methods(whole, every),
        _part(whole, every, _DEVICES, name="devices", title="Devices: who gains, by amount of data"),
        _part(whole, every, _TRAINING, name="training", title="Costs of training"),
    ]


def _methods(whole: Table, every: MethodColumns) -> Table:
    results = every.results
    table = replace(whole, shown=every.headings(results.columns))
    intervals = interval_notes(visible(table).rows)
    return replace(
        table,
        notes=[
            " ".join(filter(None, (_means(every), every.meaning(results.columns)))),
            *missing_notes(every.models, every.ranking),
            *intervals,
            *_unknown(every, results.columns),
            *([every.other_part] if "difference" in results.columns and every.other_part else []),
            *results.notes,
        ],
        elsewhere=intervals,
    )


def _part(whole: Table, every: MethodColumns, names: Sequence[str], *, name: str, title: str) -> Table:
    """Return a table of its own with some of the columns; it does not show a quarter without any device."""
    part = visible(replace(whole, shown=every.headings(names)))
    quarters = every.headings(_QUARTILES)[len(FIRST) :]
    shown = [
        heading
        for place, heading in enumerate(part.columns)
        if heading not in quarters or any(row[place] is not None for row in part.rows)
    ]
    notes = [every.meaning(names), *_unknown(every, names)]
    return replace(part, name=name, title=title, shown=shown, notes=notes)


def _means(every: MethodColumns) -> str:
    if "metric" not in every.results.columns:
        return ""
    over = seeds_text([model.by_seed for model in every.models])
    return f"Weighted means over devices, averaged over {over}. {marked_note()}"


def _unknown(every: MethodColumns, names: Sequence[str]) -> Iterator[str]:
    """Yield a note where it is not known when models reach the reference."""
    if (reason := every.reaching.unknown) and {"rounds_to_reach", "mb_to_reach"} & {*names}:
        yield f"It is not known when methods reach it: {reason}."
