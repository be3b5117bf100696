"""The table of a comparison's tuning: the values chosen for each method, and what lies at an edge."""

from collections.abc import Iterator, Sequence
from typing import Any

from partita.report.differences import counted
from partita.report.tables.entries import Entry
from partita.report.tables.table import Table
from partita.studies.cells import START
from partita.studies.results import Results, Variant
from partita.studies.trials import Tuned, ends_of


def tuned_table(results: Results) -> Table:
    """Return the settings that tuning has chosen for each method, with the range of those tried."""
    rows = [row for variant, tuned in results.tuned.items() for row in _rows(results, variant, tuned)]
    return Table(
        name="tuned",
        title="Settings chosen on the validation split of the first seed",
        columns=[
            *("method", "personal part", "key", "value", "lowest tried", "highest tried", "at an edge"),
            *(f"validation {results.metric}", "trials", "failed"),
        ],
        rows=rows,
        notes=[
            f"{_trials(results)}, over the learning rates and the further values that it declares; the worst "
            "of them are stopped early. The chosen trial is the one with the best "
            f"{results.metric} on validation rows, which no trial trains on; test rows are not read. Failed: "
            "trials that diverged or have no result for all devices.",
            *_untuned(results),
            *_edges(results),
        ],
    )


def _trials(results: Results) -> str:
    """Return how many trials each method has."""
    counts = {len(tuned.trials) for tuned in results.tuned.values()}
    if len(counts) == 1:
        return f"Every method in this table has {counted(counts.pop(), 'trial')}"
    fewest, most = min(counts, default=0), max(counts, default=0)
    return f"A method has {fewest} to {most} trials, fewer than others where it has fewer combinations to try"


def _untuned(results: Results) -> Iterator[str]:
    """Yield a sentence that lists the methods with nothing to tune, if there are any."""
    missing = [(method, part) for method, part in results.outcomes if method != START]
    names = [_name(results, variant) for variant in missing if variant not in results.tuned]
    if names:
        yield f"Not tuned, because nothing that they declare is trained with: {', '.join(names)}."


def _name(results: Results, variant: Variant) -> str:
    return " ".join(filter(None, (results.titles[variant[0]], variant[1])))


def _rows(results: Results, variant: Variant, tuned: Tuned) -> Iterator[list[Entry]]:
    """Yield a row for each key of one method, with the counts of its trials."""
    ends = ends_of(tuned.trials, tuned.best)
    for key, value in tuned.best.choice.items():
        tried = [trial.choice[key] for trial in tuned.trials]
        yield [
            results.titles[variant[0]],
            variant[1],
            key,
            str(value),
            *_range(tried),
            ends.get(key, ""),
            tuned.best.value,
            len(tuned.trials),
            sum(trial.has_failed for trial in tuned.trials),
        ]


def _range(tried: Sequence[Any]) -> tuple[str, str]:
    """Return the lowest and the highest value tried, empty for a setting that is not a number.

    >>> _range([0.3, 0.01, 1]), _range(["sgd", "adam"])
    (('0.01', '1'), ('', ''))
    """
    if any(isinstance(value, str | bool) for value in tried):
        return "", ""
    return str(min(tried)), str(max(tried))


def _edges(results: Results) -> Iterator[str]:
    """Yield a sentence that lists the chosen values at an end of what was tried, if there are any."""
    found: list[str] = []
    for variant, tuned in results.tuned.items():
        ends = ends_of(tuned.trials, tuned.best)
        values = [f"`{key}` = {tuned.best.choice[key]} ({end})" for key, end in ends.items()]
        if values:
            found.append(f"{_name(results, variant)} {', '.join(values)}")
    if found:
        yield f"At an edge of what was tried: {'; '.join(found)}. A wider range or more trials may be better."
