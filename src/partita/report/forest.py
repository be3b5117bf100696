"""The chart that a page begins with: every model's mean, and whether it differs from the reference."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partita.report.charts.forest import REFERENCE, Forest, forest
from partita.report.differences import BETTER, UNCLEAR, UNKNOWN, WORSE, Difference, counted
from partita.report.figures import Datum
from partita.report.page import Section
from partita.tasks.metrics import Direction

_FENCE = 3
"""Values so many interquartile ranges outside the quartiles are beyond the axis (Tukey's outer fences)."""
_MARGIN = 0.04
"""The share of the range that is added at both ends of the axis."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """The reference, a line in the chart."""

    title: str
    mean: float
    direction: Direction

    def at(self, gain: float) -> float:
        """Return the metric of a model that is better by `gain`."""
        return self.mean + (gain if self.direction == "up" else -gain)


def forest_row(title: str, mean: float, found: Difference | None, line: Line | None) -> Datum:
    """Return a row of the chart: the mean, and the interval of the difference drawn around the reference.

    Args:
        title: the model.
        mean: the mean of its metric.
        found: its difference from the reference; None for the reference itself and where there is none.
        line: the reference, if it has a result.
    """
    if found is None or line is None:
        verdict = REFERENCE if line and title == line.title else UNKNOWN
        return {
            **{"model": title, "mean": mean, "point": mean, "low": None, "high": None, "gain": None},
            "verdict": verdict,
        }
    ends = [None, None]
    if found.low is not None and found.high is not None:
        ends = sorted((line.at(found.low), line.at(found.high)))
    return {
        **{"model": title, "mean": mean, "point": line.at(found.value), "low": ends[0], "high": ends[1]},
        **{"gain": found.value, "verdict": found.verdict},
    }


def forest_section(
    rows: Sequence[Datum], line: Line | None, metric: str, *, title: str, notes: Sequence[str] = ()
) -> Section:
    """Return the chart of all models, the best first.

    Args:
        rows: a row for each model, the best first.
        line: the reference, if it has a result.
        metric: the name of the metric.
        title: the title of the section.
        notes: further sentences of the caption.
    """
    better = "higher" if line is None or line.direction == "up" else "lower"
    values = [row[key] for row in rows for key in ("point", "low", "high")]
    content = Forest(
        title=title,
        caption=" ".join([_explanation(rows, line, metric), *notes]),
        models=[row["model"] for row in rows],
        metric=f"{metric} ({better} is better)",
        ends=axis_ends([value for value in values if value is not None]),
        line=line.mean if line else None,
    )
    return Section(title=title, finding=_finding(rows, line), chart=forest(content))


def _explanation(rows: Sequence[Datum], line: Line | None, metric: str) -> str:
    if line is None:
        return f"The mean {metric} of every model. The reference has no result: no difference can be drawn."
    bar = f"Its bar is the 95 % interval of its paired difference from {line.title}, the dashed line"
    if all(row["low"] is None for row in rows):
        return f"The mean {metric} of every model, and its difference from {line.title}, the dashed line."
    return (
        f"The mean {metric} of every model, the best first. {bar}: where it reaches the line, the two do not "
        "clearly differ. The numbers are the mean and the difference, positive if better."
    )


def _finding(rows: Sequence[Datum], line: Line | None) -> str:
    """Return how many models differ clearly from the reference."""
    counts = Counter(row["verdict"] for row in rows)
    judged = sum(counts[verdict] for verdict in (BETTER, UNCLEAR, WORSE))
    if line is None or not judged:
        return ""
    if judged == 1:
        (only,) = (row for row in rows if row["verdict"] in (BETTER, UNCLEAR, WORSE))
        return f"{only['model']}: {only['verdict']}{' than' if only['verdict'] != UNCLEAR else ' from'} {line.title}"
    return (
        f"Of {counted(judged, 'other model')}, {counts[BETTER]} {_are(counts[BETTER])} clearly better than "
        f"{line.title}, {counts[WORSE]} clearly worse, {counts[UNCLEAR]} without a clear difference"
    )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def axis_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that shows all values but those far outside the others.

    >>> axis_ends([0.0, 1.0])
    (-0.04, 1.04)
    >>> axis_ends([1, 2, 3, 4, 5, 900])
    (0.84, 5.16)
    """
    inside = list(values)
    if len(values) > 4:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        reach = _FENCE * (third - first) or max(values) - min(values)
        inside = [value for value in values if first - reach <= value <= third + reach]
    margin = _MARGIN * (max(inside) - min(inside)) or _MARGIN
    return min(inside) - margin, max(inside) + margin
