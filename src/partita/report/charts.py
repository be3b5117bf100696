"""The charts, each defined once: the page draws it, and the same definition gives PNG, SVG and PDF files.

A chart names its datasets and does not contain them, so that a page holds each dataset once. Colors come
from the page's palette, which is safe for color-blind readers and differs between light and dark mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

WIDTH = 820
"""The width of a chart in pixels; on a narrow page every part of a chart is scaled down."""
_HEIGHT = 240
_SMALL_HEIGHT = 90
NAMES = frozenset(("curves", "parameters", "scatter", "violins", "sorted", "examples"))
"""The names of all charts, which are the names of their files."""
PARAMETERS = "Change by personal parameters"
DISTRIBUTION = "Distribution of the change over devices"
EXAMPLES = "Training examples per device"
"""Titles of charts that a page also uses where the chart cannot be drawn."""
_MAX_COLUMNS = 3
"""Small multiples side by side."""
_MAX_VIOLINS = 5
"""Violins side by side."""
_GAP = 24
"""Pixels between two charts side by side."""
_COUNTS = alt.Axis(tickMinStep=1, labelOverlap=True, format=",d")
_SPLITS = ["train", "validation", "test"]
_MARGIN = 0.1
"""The share of the range that is added above and below a violin."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart without its data."""

    name: str
    """The name of its files."""
    title: str
    caption: str
    """Description: the text below the chart, and the alternative text for screen readers."""
    spec: Mapping[str, Any]
    """The Vega-Lite specification."""
    data: Sequence[str]
    """The names of the datasets that it draws."""


@dataclass(frozen=True, kw_only=True)
class Legend:
    """How a chart encodes its models: methods by color, personal parts by shape."""

    methods: Sequence[str]
    """The methods of all charts on the page, in the order of their colors: a method keeps its color."""
    shown: Sequence[str]
    """The methods that this chart shows."""
    parts: Sequence[str] = ()
    """The personal parts, if there are several."""

    @property
    def colors(self) -> alt.Color:
        """The color of each method."""
        scale, legend = alt.Scale(domain=list(self.methods)), alt.Legend(values=list(self.shown))
        title = "method" if self.parts else "model"
        return alt.Color("method:N", scale=scale, title=title, legend=legend)

    @property
    def shapes(self) -> Any:
        """The shape of each personal part; undefined if there are none."""
        if not self.parts:
            return alt.Undefined
        return alt.Shape("part:N", sort=list(self.parts), title="personal part")


def _chart(name: str, title: str, caption: str, drawn: Any, *data: str) -> Chart:
    spec = drawn.to_dict() | {"description": caption}
    return Chart(name=name, title=title, caption=caption, spec=spec, data=data)


def _from(data: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=data))


def _width(columns: int) -> int:
    """Return the width of one of several charts side by side."""
    return max(60, WIDTH // columns - _GAP)


def curves(quantities: Mapping[str, str], caption: str) -> Chart:
    """Return a run's training curves: one panel for each quantity, a title by its column in `rounds`."""
    panels = [
        _from("rounds")
        .mark_line(point={"size": 12})
        .encode(
            x=alt.X("number:Q", title="round, all stages" if is_last else None, axis=_COUNTS),
            y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=column != "loss")),
            color=alt.Color("stage:N", title="stage", sort=None),
            tooltip=["stage:N", "round:Q", alt.Tooltip(f"{column}:Q", title=title, format=".4~g")],
        )
        .transform_filter(f"isValid(datum['{column}'])")
        .properties(width=WIDTH, height=_SMALL_HEIGHT)
        for column, title in quantities.items()
        for is_last in [column == list(quantities)[-1]]
    ]
    return _chart("curves", "Training", caption, alt.vconcat(*panels).resolve_scale(x="shared"), "rounds")


def losses(caption: str, legend: Legend) -> Chart:
    """Return a comparison's training loss by round: a line for each method, a panel for each part."""
    columns = min(len(legend.parts), 2)
    drawn = (
        _from("rounds")
        .mark_line()
        .encode(
            x=alt.X("round:Q", axis=_COUNTS),
            y=alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False)),
            color=legend.colors,
            tooltip=["model:N", "round:Q", alt.Tooltip("loss:Q", format=".4~g")],
        )
        .properties(width=_width(columns), height=_HEIGHT)
        .facet(alt.Facet("part:N", title=None, sort=list(legend.parts)), columns=columns)
        .resolve_scale(x="independent", y="independent")
    )
    return _chart("curves", "Training", caption, drawn, "rounds")


def parameters(change: str, caption: str, legend: Legend) -> Chart:
    """Return each model's change against the number of values that a device keeps for it."""
    points = _from("models").encode(
        x=alt.X("kept:Q", title="values kept on a device", scale=alt.Scale(type="log")),
        y=alt.Y("change:Q", title=change),
        tooltip=[
            "model:N",
            alt.Tooltip("kept:Q", title="values kept"),
            alt.Tooltip("change:Q", title=change, format="+.4f"),
        ],
    )
    zero = _from("models").mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    dots = points.mark_point(filled=True, size=70).encode(color=legend.colors, shape=legend.shapes)
    drawn = alt.layer(zero, dots).properties(width=WIDTH, height=_HEIGHT)
    return _chart("parameters", PARAMETERS, caption, drawn, "models")


def scatter(change: str, caption: str, legend: Legend) -> Chart:
    """Return every device's change against its training examples, by split; a menu highlights a method."""
    choices = alt.binding_select(options=[None, *legend.shown], labels=["all", *legend.shown], name="Show ")
    chosen = alt.selection_point(fields=["method"], bind=choices)
    drawn = (
        _from("devices")
        .transform_filter("isValid(datum.change)")
        .transform_filter(alt.FieldOneOfPredicate("method", list(legend.shown)))
        .mark_point(filled=True, size=36)
        .encode(
            x=alt.X("examples:Q", title="training examples", scale=alt.Scale(zero=False), axis=_COUNTS),
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
        .properties(width=_width(2), height=_HEIGHT)
        .facet(alt.Facet("split:N", title=None, sort=_SPLITS), columns=2)
    )
    return _chart("scatter", "Change by number of training examples", caption, drawn, "devices")


def violins(change: str, caption: str, models: Sequence[str], *, extent: Sequence[float]) -> Chart:
    """Return the distribution of the change over devices: a violin for each model, a color for each split."""
    columns = min(len(models), _MAX_VIOLINS)
    low, high = extent
    margin = _MARGIN * (high - low)
    drawn = (
        _from("devices")
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
        .properties(width=_width(columns), height=_HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=columns)
    )
    return _chart("violins", DISTRIBUTION, caption, drawn, "devices")


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
        .properties(width=_width(columns), height=_HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=columns)
    )
    return _chart("sorted", "Change of every device, sorted", caption, drawn, "devices")


def histogram(caption: str) -> Chart:
    """Return a histogram of the number of training examples per device."""
    drawn = (
        _from("sizes")
        .mark_bar()
        .encode(
            x=alt.X(
                "examples:Q", bin=alt.Bin(maxbins=30, minstep=1), title="training examples", axis=_COUNTS
            ),
            y=alt.Y("count()", title="devices"),
            tooltip=[alt.Tooltip("examples:Q", bin=alt.Bin(maxbins=30, minstep=1)), "count()"],
        )
        .properties(width=WIDTH, height=_HEIGHT // 2)
    )
    return _chart("examples", EXAMPLES, caption, drawn, "sizes")
