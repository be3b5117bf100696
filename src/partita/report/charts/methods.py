"""Charts with a point for each model: its metric against its costs."""

import altair as alt

from partita.report.charts.chart import HEIGHT, WIDTH, Chart, Legend, chart_of, from_data

PARAMETERS = "Change by personal parameters"
"""The title, which a page also uses where the chart cannot be drawn."""


def parameters(change: str, caption: str, legend: Legend) -> Chart:
    """Return each model's change against the number of values that a device keeps for it."""
    points = from_data("models").encode(
        x=alt.X("kept:Q", title="values kept on a device", scale=alt.Scale(type="log")),
        y=alt.Y("change:Q", title=change),
        tooltip=[
            "model:N",
            alt.Tooltip("kept:Q", title="values kept"),
            alt.Tooltip("change:Q", title=change, format="+.4f"),
        ],
    )
    zero = from_data("models").mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    dots = points.mark_point(filled=True, size=70).encode(color=legend.colors, shape=legend.shapes)
    drawn = alt.layer(zero, dots).properties(width=WIDTH, height=HEIGHT)
    return chart_of("parameters", PARAMETERS, caption, drawn, "models")
