"""Charts of all devices: changes of the metric, and training examples."""

import json
from collections.abc import Sequence

import altair as alt

from partita.report.charts.chart import COUNTS, HEIGHT, WIDTH, Chart, Legend, chart_of, from_data, width_of

DISTRIBUTION = "Distribution of the change over devices"
EXAMPLES = "Training examples per device"
"""Titles of charts that a page also uses where the chart cannot be drawn."""
_MAX_COLUMNS = 3
"""Small multiples side by side."""
_SPLITS = ["train", "validation", "test"]
_APART = 0.02
"""The share of the axis over which the points of one device under all models are spread, to be seen."""


def scatter(change: str, caption: str, legend: Legend) -> Chart:
    """Return every device's change against its training examples, by split; a menu highlights a model."""
    models = list(legend.shown)
    choices = alt.binding_select(options=[None, *models], labels=["all", *models], name="Show ")
    chosen = alt.selection_point(fields=["model"], bind=choices)
    step = _APART / max(1, len(models) - 1)
    beside = (
        f"(indexof({json.dumps(models)}, datum.model) * {step} - {_APART / 2}) * (datum.most - datum.least)"
    )
    drawn = (
        _on_train_and_reported(models)
        .transform_joinaggregate(least="min(examples)", most="max(examples)")
        .transform_calculate(place=f"datum.examples + {beside if len(models) > 1 else 0}")
        .mark_point(size=34, strokeWidth=1.6)
        .encode(
            x=alt.X("place:Q", title="training examples", scale=alt.Scale(zero=False), axis=COUNTS),
            y=alt.Y("change:Q", title=change),
            opacity=alt.condition(chosen, alt.value(0.8), alt.value(0.04)),
            tooltip=[
                alt.Tooltip("device:N"),
                alt.Tooltip("model:N"),
                alt.Tooltip("examples:Q"),
                alt.Tooltip("change:Q", title=change, format="+.4f"),
            ],
            color=legend.colors,
        )
        .add_params(chosen)
        .properties(width=width_of(2), height=HEIGHT)
        .facet(alt.Facet("split:N", title=None, sort=_SPLITS), columns=2)
    )
    spread = " Points of one device under several models are side by side." if len(models) > 1 else ""
    title = "Change by number of training examples"
    return chart_of("scatter", title, f"{caption}{spread}", drawn, "devices")


def violins(change: str, caption: str, legend: Legend, *, on_train: Sequence[str]) -> Chart:
    """Return the distribution of the change over devices, a violin for each model, as high as its range.

    The right half is the split that the page reports. The left half is the train split, of the models
    `on_train`.
    """
    drawn = list(legend.shown)
    columns = min(len(drawn), _MAX_COLUMNS)
    is_train = "datum.split == 'train'"
    panels = (
        _on_train_and_reported(drawn)
        .transform_filter(f"!({is_train}) || indexof({json.dumps(list(on_train))}, datum.model) >= 0")
        .transform_density(
            "change", groupby=["model", "split"], as_=["change", "density"], resolve="independent"
        )
        .transform_calculate(side=f"{is_train} ? -datum.density : datum.density")
        .mark_area(orient="horizontal", opacity=0.8)
        .encode(
            x=alt.X("side:Q", title=None, axis=None),
            x2=alt.X2Datum(0),
            y=alt.Y("change:Q", title=change),
            detail=alt.Detail("split:N"),
            color=alt.condition(is_train, alt.value("#999999"), legend.colors.legend(None)),
        )
        .properties(width=width_of(columns), height=HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=drawn), columns=columns)
    )
    return chart_of("violins", DISTRIBUTION, caption, panels, "devices")


def _on_train_and_reported(models: Sequence[str]) -> alt.Chart:
    """Return an empty chart of some models' changes, on the train split and the one that the page reports."""
    return (
        from_data("devices")
        .transform_filter("isValid(datum.change) && (datum.split == 'train' || isValid(datum.rank))")
        .transform_filter(alt.FieldOneOfPredicate("model", list(models)))
    )


def sorted_changes(change: str, caption: str, legend: Legend, *, has_band: bool) -> Chart:
    """Return the sorted change of every device, with a band from the lowest to the highest seed."""
    models = list(legend.shown)
    columns = min(len(models), _MAX_COLUMNS)
    base = alt.Chart().encode(x=alt.X("rank:Q", title="devices, sorted by change"))
    tips = {"change": change, "low": "lowest seed", "high": "highest seed"}
    shown = list(tips) if has_band else ["change"]
    base = base.encode(color=legend.colors.legend(None))
    line = base.mark_line(point={"size": 14}).encode(
        y=alt.Y("change:Q", title=change),
        tooltip=[
            alt.Tooltip("device:N"),
            alt.Tooltip("model:N"),
            *(alt.Tooltip(f"{name}:Q", title=tips[name], format="+.4f") for name in shown),
        ],
    )
    zero = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.YDatum(0))
    band = base.mark_area(opacity=0.35).encode(y=alt.Y("low:Q", title=change), y2=alt.Y2("high:Q"))
    drawn = (
        alt.layer(*([band] if has_band else []), zero, line, data=alt.NamedData(name="devices"))
        .transform_filter("isValid(datum.rank)")
        .transform_filter(alt.FieldOneOfPredicate("model", models))
        .properties(width=width_of(columns), height=HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=models), columns=columns)
    )
    return chart_of("sorted", "Change of every device, sorted", caption, drawn, "devices")


def histogram(caption: str) -> Chart:
    """Return a histogram of the number of training examples per device."""
    drawn = (
        from_data("sizes")
        .mark_bar()
        .encode(
            x=alt.X("examples:Q", bin=alt.Bin(maxbins=30, minstep=1), title="training examples", axis=COUNTS),
            y=alt.Y("sum(devices):Q", title="devices"),
            tooltip=[
                alt.Tooltip("examples:Q", bin=alt.Bin(maxbins=30, minstep=1)),
                alt.Tooltip("sum(devices):Q", title="devices"),
            ],
        )
        .properties(width=WIDTH, height=HEIGHT // 2)
    )
    return chart_of("examples", EXAMPLES, caption, drawn, "sizes")
