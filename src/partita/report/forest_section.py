"""The chart that a page begins with: every model's mean, and whether it differs from the reference."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
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
_SQUEEZED = 0.25
"""Values far worse than others are beyond the axis if the others would have less than this share of it."""
_ROUNDING = 5e-5
"""Numbers that differ by less look the same with four decimals."""


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
        # Zero is added because a rounded -0.00001 would be drawn as -0.0000.
        "gain": None if gain is None else round(gain, 4) + 0.0,
        "verdict": verdict,
    }


def forest_section(
    rows: Sequence[Datum],
    line: Line | None,
    metric: str,
    *,
    title: str,
    direction: Direction,
    notes: Sequence[str] = (),
) -> Section:
    """Return the chart of all models, the best first.

    Args:
        rows: a row for each model.
        line: the reference, if it has a result.
        metric: the name of the metric.
        title: the title of the section.
        direction: the direction in which the metric improves.
        notes: further sentences of the caption.
    """
    better = "higher" if direction == "up" else "lower"
    bars = [row[key] for row in rows for key in ("low", "high") if row[key] is not None]
    ends = axis_ends([row["point"] for row in rows], bars, direction, kept=[line.mean] if line else [])
    content = Forest(
        title=title,
        caption=" ".join([_explanation(rows, line, metric), *_exceptions(rows, line, ends), *notes]),
        models=[
            row["model"] for row in sorted(rows, key=lambda row: row["point"], reverse=direction == "up")
        ],
        metric=f"{metric} ({better} is better)",
        ends=ends,
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


def _exceptions(rows: Sequence[Datum], line: Line | None, ends: tuple[float, float]) -> Iterator[str]:
    """Yield which models are not drawn at their means, and that some are beyond the axis."""
    moved = [row for row in rows if abs(row["point"] - row["mean"]) > _ROUNDING]
    if line and moved:
        means = ", ".join(f"{row['model']} ({row['mean']:.4f})" for row in moved)
        yield (
            f"Not evaluated on the same devices and seeds as {line.title}, and therefore drawn at its mean "
            "plus the difference on those that both have (in parentheses, the mean over all of their own): "
            f"{means}."
        )
    bars = [(row["low"], row["high"]) for row in rows if row["low"] is not None]
    if not all(ends[0] <= low and high <= ends[1] for low, high in bars):
        yield "An arrow at the end of a bar means that it extends beyond the axis."
    if not all(ends[0] <= row["point"] <= ends[1] for row in rows):
        yield "A hollow arrow with a number is a model whose mean is beyond the axis."


def _finding(rows: Sequence[Datum], line: Line | None) -> str:
    """Return how many models differ clearly from the reference."""
    counts = Counter(row["verdict"] for row in rows)
    judged = sum(counts[verdict] for verdict in (BETTER, UNCLEAR, WORSE))
    if line is None or not judged:
        return ""
    if counts[UNCLEAR] == judged:
        return f"No other model clearly differs from {line.title}"
    if judged in (counts[BETTER], counts[WORSE]):
        every = {1: "The other model is", 2: "Both other models are"}.get(
            judged, f"All {judged} other models are"
        )
        return f"{every} {BETTER if counts[BETTER] else WORSE} than {line.title}"
    parts = [f"{counts[verdict]} {verdict}" for verdict in (BETTER, WORSE) if counts[verdict]]
    unclear = f", {counts[UNCLEAR]} without a clear difference" if counts[UNCLEAR] else ""
    return f"{counted(judged, 'other model')}: {' and '.join(parts)} than {line.title}{unclear}"


def axis_ends(
    points: Sequence[float], bars: Sequence[float], direction: Direction, *, kept: Sequence[float] = ()
) -> tuple[float, float]:
    """Return an axis with all models but those that `near_range` leaves out.

    Of many models, an interval that extends beyond all of them by more than their own range is cut off.

    >>> axis_ends([0.0, 1.0], [], "up")
    (-0.04, 1.04)
    >>> axis_ends([1, 2, 3, 4, 5, 900], [0.5, 8, 20], "down")
    (0.2, 8.3)

    Args:
        points: the models.
        bars: the ends of their intervals.
        direction: the direction in which the metric improves.
        kept: values that are never left out.
    """
    low, high = near_range(points, direction, kept=kept)
    reach = high - low if len(points) > _ENOUGH and high > low else math.inf
    inside = [low, high, *(end for end in bars if low - reach <= end <= high + reach)]
    margin = _MARGIN * (max(inside) - min(inside)) or _MARGIN
    return min(inside) - margin, max(inside) + margin


def near_range(
    values: Sequence[float], direction: Direction, *, kept: Sequence[float] = ()
) -> tuple[float, float]:
    """Return the range of all values, without those so far worse than the others that they would hide them.

    >>> near_range([0.972, 0.975, 0.976, 0.977, 0.984, 0.957], "up")
    (0.957, 0.984)
    >>> near_range([0.972, 0.975, 0.976, 0.977, 0.984, 0.5], "up")
    (0.972, 0.984)
    >>> near_range([0.972, 0.975, 0.976, 0.977, 0.984, 0.5], "up", kept=[0.6])
    (0.5, 0.984)

    Args:
        values: the values.
        direction: the direction in which they improve.
        kept: values that are in the range in any case.
    """
    low, high = fences(values)
    near = [*kept, *(value for value in values if (value >= low if direction == "up" else value <= high))]
    every = [*kept, *values]
    is_squeezed = max(near) - min(near) < _SQUEEZED * (max(every) - min(every))
    drawn = near if is_squeezed else every
    return min(drawn), max(drawn)


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
