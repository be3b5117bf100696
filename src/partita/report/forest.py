"""The chart that a page begins with: every model's mean, and whether it differs from the reference."""

import math
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
_ENOUGH = 4
"""So few values have no fences."""
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
        return _row(title, mean, point=mean, verdict=verdict)
    ends = [None, None]
    if found.low is not None and found.high is not None:
        ends = sorted((line.at(found.low), line.at(found.high)))
    return _row(title, mean, point=line.at(found.value), ends=ends, gain=found.value, verdict=found.verdict)


def _row(
    title: str,
    mean: float,
    *,
    point: float,
    verdict: str,
    ends: Sequence[float | None] = (None, None),
    gain: float | None = None,
) -> Datum:
    low, high = ends
    return {
        "model": title,
        "mean": mean,
        "point": point,
        "low": low,
        "high": high,
        "gain": gain,
        "verdict": verdict,
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
    ends = [row[key] for row in rows for key in ("low", "high") if row[key] is not None]
    content = Forest(
        title=title,
        caption=" ".join([_explanation(rows, line, metric), *notes]),
        models=[row["model"] for row in rows],
        metric=f"{metric} ({better} is better)",
        ends=axis_ends([row["point"] for row in rows], ends, line.direction if line else "up"),
        line=line.mean if line else None,
        label=f"{line.title}, {line.mean:.4f}" if line else "",
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
    if counts[UNCLEAR] == judged:
        return f"No other model clearly differs from {line.title}"
    parts = [f"{counts[verdict]} {verdict}" for verdict in (BETTER, WORSE) if counts[verdict]]
    unclear = f", {counts[UNCLEAR]} without a clear difference" if counts[UNCLEAR] else ""
    return f"{counted(judged, 'other model')}: {' and '.join(parts)} than {line.title}{unclear}"


def axis_ends(points: Sequence[float], ends: Sequence[float], direction: Direction) -> tuple[float, float]:
    """Return an axis that shows all models but those far worse than the others.

    Of many models, an interval that extends beyond all of them by more than their own range is cut off.

    >>> axis_ends([0.0, 1.0], [], "up")
    (-0.04, 1.04)
    >>> axis_ends([1, 2, 3, 4, 5, 900], [0.5, 8, 20], "down")
    (0.2, 8.3)
    """
    near = [point for point in points if is_near(point, fences(points), direction)]
    low, high = min(near), max(near)
    reach = high - low if len(points) > _ENOUGH and high > low else math.inf
    inside = [*near, *(end for end in ends if low - reach <= end <= high + reach)]
    margin = _MARGIN * (max(inside) - min(inside)) or _MARGIN
    return min(inside) - margin, max(inside) + margin


def is_near(value: float, fence: tuple[float, float], direction: Direction) -> bool:
    """Return whether a value is not far worse than the others."""
    return value >= fence[0] if direction == "up" else value <= fence[1]


def fences(values: Sequence[float]) -> tuple[float, float]:
    """Return Tukey's outer fences: values beyond them are far outside the others.

    >>> fences([1, 2, 3, 4, 5, 900])
    (-5.25, 12.25)
    """
    if len(values) <= _ENOUGH:
        return -math.inf, math.inf
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    reach = _FENCE * (third - first) or math.inf
    return first - reach, third + reach
