"""Models of several runs and comparisons: a row for each, its mean and its interval."""

from collections.abc import Sequence

import altair as alt

from partita.report.charts.chart import Chart, chart_of, from_data

_ROW = 28
"""The height of a row in pixels."""
_WIDTH = 520
"""The width without the names of models."""


def side_by_side(metric: str, caption: str, models: Sequence[str], sources: Sequence[str]) -> Chart:
    """Return every model's mean with its interval, one color for each source.

    Args:
        metric: the title of the axis.
        caption: the text below the chart.
        models: all models, in the order of their rows.
        sources: all runs and comparisons, in the order of their colors.
    """
    rows = from_data("models").encode(
        y=alt.Y("model:N", sort=list(models), title=None, axis=alt.Axis(labelLimit=330)),
        color=alt.Color("source:N", scale=alt.Scale(domain=list(sources)), title=None),
        tooltip=[
            "source:N",
            "model:N",
            *(alt.Tooltip(f"{field}:Q", format=".4f") for field in ("mean", "low", "high")),
        ],
    )
    axis = alt.X("mean:Q", title=metric, scale=alt.Scale(zero=False))
    bars = rows.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3)
    ends = bars.encode(x=alt.X("low:Q", title=metric, scale=alt.Scale(zero=False)), x2="high:Q")
    means = rows.mark_point(filled=True, size=130, opacity=1).encode(x=axis)
    drawn = alt.layer(ends, means).properties(width=_WIDTH, height=_ROW * len(models))
    return chart_of("models", "All models", caption, drawn, "models")
