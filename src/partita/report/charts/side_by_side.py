"""Models of several runs and comparisons: a row for each, beside the reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from partita.report.charts.chart import Chart, chart_of, from_data

_ROW = 28
"""The height of a row in pixels."""
_WIDTH = 520
"""The width without the names of models."""


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """The contents of the chart."""

    caption: str
    metric: str
    """The title of the axis."""
    models: Sequence[str]
    """All models, in the order of their rows."""
    sources: Sequence[str]
    """All runs and comparisons, in the order of their colors."""
    points: Sequence[float]
    """The place of every model on the axis."""
    line: float
    """The mean of the reference."""

    @property
    def x(self) -> alt.Scale:
        """The axis: all points, and as much again on both sides for intervals."""
        low, high = min(self.points), max(self.points)
        margin = (high - low) / 2 or abs(high) / 10 or 1.0
        return alt.Scale(zero=False, domain=[low - margin, high + margin], nice=True)


def side_by_side(content: SideBySide) -> Chart:
    """Return every model's point with the interval of its difference from the reference, a dashed line."""
    numbers = (alt.Tooltip(f"{field}:Q", format=".4f") for field in ("mean", "low", "high"))
    rows = from_data("models").encode(
        y=alt.Y("model:N", sort=list(content.models), title=None, axis=alt.Axis(labelLimit=330)),
        color=alt.Color("source:N", scale=alt.Scale(domain=list(content.sources)), title=None),
        tooltip=["source:N", "model:N", *numbers],
    )
    bars = rows.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3, clip=True)
    ends = bars.encode(x=alt.X("low:Q", title=content.metric, scale=content.x), x2="high:Q")
    point = alt.X("point:Q", title=content.metric, scale=content.x)
    points = rows.mark_point(filled=True, size=130, opacity=1).encode(x=point)
    line = (
        from_data("models").mark_rule(strokeDash=[6, 4]).encode(x=alt.X(datum=content.line, scale=content.x))
    )
    drawn = alt.layer(line, ends, points).properties(width=_WIDTH, height=_ROW * len(content.models))
    return chart_of("models", "All models", content.caption, drawn, "models")
