"""Charts of training: a run's curves by round, and the losses of a comparison."""

from collections.abc import Mapping

import altair as alt

from partita.report.charts.chart import (
    COUNTS,
    GRAY,
    HEIGHT,
    THIN,
    WIDTH,
    Chart,
    Legend,
    chart_of,
    from_data,
    width_of,
)

_SMALL_HEIGHT = 90
PRETRAINING = "pretraining"
"""The part of the pretrained model in the data of losses."""


def curves(quantities: Mapping[str, str], caption: str) -> Chart:
    """Return a run's training curves: one panel for each quantity, a title by its column in `rounds`."""
    panels = [
        from_data("rounds")
        .mark_line(point={"size": 12})
        .encode(
            x=alt.X("number:Q", title="round, all stages" if is_last else None, axis=COUNTS),
            y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=column != "loss")),
            color=alt.Color("stage:N", title="stage", sort=None),
            tooltip=[
                alt.Tooltip("stage:N"),
                alt.Tooltip("round:Q"),
                alt.Tooltip(f"{column}:Q", title=title, format=".4~g"),
            ],
        )
        .transform_filter(f"isValid(datum['{column}'])")
        .properties(width=WIDTH, height=_SMALL_HEIGHT)
        for column, title in quantities.items()
        for is_last in [column == list(quantities)[-1]]
    ]
    return chart_of("curves", "Training", caption, alt.vconcat(*panels).resolve_scale(x="shared"), "rounds")


def losses(caption: str, legend: Legend) -> Chart:
    """Return a comparison's training loss by round: a line for each model, a panel for pretraining."""
    panel = f"datum.part === '{PRETRAINING}' ? '{PRETRAINING}' : 'personalization'"
    shown = alt.FieldOneOfPredicate("model", list(legend.shown))
    drawn = (
        from_data("rounds")
        .transform_calculate(panel=panel)
        .mark_line()
        .encode(
            x=alt.X("round:Q", axis=COUNTS),
            y=alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False)),
            detail=alt.Detail("model:N"),
            color=alt.condition(shown, legend.colors, alt.value(GRAY)),
            size=alt.condition(shown, alt.value(2.5), alt.value(THIN["strokeWidth"])),
            opacity=alt.condition(shown, alt.value(1), alt.value(THIN["opacity"])),
            tooltip=[alt.Tooltip("model:N"), alt.Tooltip("round:Q"), alt.Tooltip("loss:Q", format=".4~g")],
        )
        .properties(width=width_of(2), height=HEIGHT)
        .facet(alt.Facet("panel:N", title=None, sort=[PRETRAINING]), columns=2)
        .resolve_scale(x="independent", y="independent")
    )
    return chart_of("curves", "Training", caption, drawn, "rounds")
