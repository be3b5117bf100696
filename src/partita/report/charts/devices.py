"""Charts of all devices: changes of the metric, and training examples."""

from collections.abc import Sequence

import altair as alt

from partita.report.charts.chart import COUNTS, HEIGHT, WIDTH, Chart, Legend, chart_of, from_data, width_of

DISTRIBUTION = "Distribution of the change over devices"
EXAMPLES = "Training examples per device"
"""Titles of charts that a page also uses where the chart cannot be drawn."""
_MAX_COLUMNS = 3
"""Small multiples side by side."""
_SPLITS = ["train", "validation", "test"]
_MARGIN = 0.1
"""The share of the range that is added above and below a violin."""


def scatter(change: str, caption: str, legend: Legend) -> Chart:
    """Return every device's change against its training examples, by split; a menu highlights a model."""
    choices = alt.binding_select(options=[None, *legend.shown], labels=["all", *legend.shown], name="Show ")
    chosen = alt.selection_point(fields=[legend.field], bind=choices)
    drawn = (
        from_data("devices")
        .transform_filter("isValid(datum.change)")
        .transform_filter(alt.FieldOneOfPredicate(legend.field, list(legend.shown)))
        .mark_point(filled=True, size=36)
        .encode(
            x=alt.X("examples:Q", title="training examples", scale=alt.Scale(zero=False), axis=COUNTS),
            y=alt.Y("change:Q", title=change),
            opacity=alt.condition(chosen, alt.value(0.65), alt.value(0.04)),
            tooltip=[
                "device:N",
                "model:N",
                "examples:Q",
                alt.Tooltip("change:Q", title=change, format="+.4f"),
            ],
            color=legend.colors,
            shape=legend.shapes,
        )
        .add_params(chosen)
        .properties(width=width_of(2), height=HEIGHT)
        .facet(alt.Facet("split:N", title=None, sort=_SPLITS), columns=2)
    )
    return chart_of("scatter", "Change by number of training examples", caption, drawn, "devices")


def violins(change: str, caption: str, models: Sequence[str], *, extent: Sequence[float]) -> Chart:
    """Return the distribution of the change over devices: a violin for each model, a color for each split."""
    columns = min(len(models), _MAX_COLUMNS)
    low, high = extent
    margin = _MARGIN * (high - low)
    drawn = (
        from_data("devices")
        .transform_filter("isValid(datum.change)")
        .transform_filter(alt.FieldOneOfPredicate("model", list(models)))
        .transform_density(
            "change",
            groupby=["model", "split"],
            as_=["change", "right"],
            extent=[low - margin, high + margin],
        )
        .transform_calculate(left="-datum.right")
        .mark_area(orient="horizontal", opacity=0.55)
        .encode(
            x=alt.X("left:Q", title=None, axis=None),
            x2="right:Q",
            y=alt.Y("change:Q", title=change),
            color=alt.Color("split:N", sort=_SPLITS, title="split"),
        )
        .properties(width=width_of(columns), height=HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=columns)
    )
    return chart_of("violins", DISTRIBUTION, caption, drawn, "devices")


def sorted_changes(change: str, caption: str, models: Sequence[str], *, has_band: bool) -> Chart:
    """Return the sorted change of every device, with a band from the lowest to the highest seed."""
    columns = min(len(models), _MAX_COLUMNS)
    base = alt.Chart().encode(x=alt.X("rank:Q", title="devices, sorted by change"))
    tips = {"change": change, "low": "lowest seed", "high": "highest seed"}
    shown = list(tips) if has_band else ["change"]
    line = base.mark_line(point={"size": 14}).encode(
        y=alt.Y("change:Q", title=change),
        tooltip=[
            "device:N",
            "model:N",
            *(alt.Tooltip(f"{name}:Q", title=tips[name], format="+.4f") for name in shown),
        ],
    )
    zero = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    band = base.mark_area(opacity=0.35).encode(y=alt.Y("low:Q", title=change), y2="high:Q")
    drawn = (
        alt.layer(*([band] if has_band else []), zero, line, data=alt.NamedData(name="devices"))
        .transform_filter("isValid(datum.rank)")
        .transform_filter(alt.FieldOneOfPredicate("model", list(models)))
        .properties(width=width_of(columns), height=HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=columns)
    )
    return chart_of("sorted", "Change of every device, sorted", caption, drawn, "devices")


def histogram(caption: str) -> Chart:
    """Return a histogram of the number of training examples per device."""
    drawn = (
        from_data("sizes")
        .mark_bar()
        .encode(
            x=alt.X("examples:Q", bin=alt.Bin(maxbins=30, minstep=1), title="training examples", axis=COUNTS),
            y=alt.Y("count()", title="devices"),
            tooltip=[alt.Tooltip("examples:Q", bin=alt.Bin(maxbins=30, minstep=1)), "count()"],
        )
        .properties(width=WIDTH, height=HEIGHT // 2)
    )
    return chart_of("examples", EXAMPLES, caption, drawn, "sizes")
