"""The charts, each defined once: the page draws it live, and the same definition gives PNG, SVG and PDF.

A chart names its data and does not hold them, so that a page holds each set of data once. Colors come from
the page's palette, which is safe for color-blind readers and differs between light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

WIDTH = 820
"""Of a chart's drawing, in pixels; a narrow page makes all parts of it narrower alike."""
_HEIGHT = 240
_SMALL = 90
NAMES = frozenset(("curves", "parameters", "scatter", "violins", "sorted", "examples"))
"""What charts' files are called."""
_FACETS = 3
_VIOLINS = 5
"""Small charts beside each other."""
_ROUND = "round, all stages in a row"
_TICKS = alt.Axis(tickMinStep=1, labelOverlap=True, format=",d")
_SPLITS = ["train", "validation", "test"]
_MARGIN = 0.1
"""Of a violin's range, beyond the least and the most."""
_BETWEEN = 24
"""What lies between two of them, in pixels."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart without its data."""

    name: str
    """What its files are called."""
    title: str
    says: str
    """What it shows, for those who cannot see it, and as its caption."""
    spec: Mapping[str, Any]
    """In Vega-Lite."""
    data: Sequence[str]
    """The names of the data that it draws."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a chart tells apart: methods by color, personal parts by shape."""

    methods: Sequence[str]
    """All that any chart of the page shows, in the order of their colors, so that each has one color."""
    shown: Sequence[str]
    """Those that this chart shows."""
    parts: Sequence[str] = ()
    """The personal parts, where there are several."""

    @property
    def colors(self) -> alt.Color:
        """A color for each method."""
        scale, legend = alt.Scale(domain=list(self.methods)), alt.Legend(values=list(self.shown))
        title = "method" if self.parts else "model"
        return alt.Color("method:N", scale=scale, title=title, legend=legend)

    @property
    def shapes(self) -> Any:
        """A shape for each part, none where there are no parts to choose."""
        return (
            alt.Shape("part:N", sort=list(self.parts), title="personal part") if self.parts else alt.Undefined
        )


def _chart(name: str, title: str, says: str, drawn: Any, *data: str) -> Chart:
    spec = drawn.to_dict() | {"description": says}
    return Chart(name=name, title=title, says=says, spec=spec, data=data)


def _of(data: str) -> alt.Chart:
    return alt.Chart(alt.NamedData(name=data))


def curves(columns: Mapping[str, str], says: str) -> Chart:
    """Return training by round, a row a quantity: titles by column of the data `rounds`."""
    rows = [
        _of("rounds")
        .mark_line(point={"size": 12})
        .encode(
            x=alt.X("at:Q", title=_ROUND if place == len(columns) else None, axis=_TICKS),
            y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=column != "loss")),
            color=alt.Color("stage:N", title="stage", sort=None),
            tooltip=["stage:N", "round:Q", alt.Tooltip(f"{column}:Q", title=title, format=".4~g")],
        )
        .transform_filter(f"isValid(datum['{column}'])")
        .properties(width=WIDTH, height=_SMALL)
        for place, (column, title) in enumerate(columns.items(), start=1)
    ]
    return _chart("curves", "Training", says, alt.vconcat(*rows).resolve_scale(x="shared"), "rounds")


def losses(says: str, key: Key) -> Chart:
    """Return the loss by round of the data `rounds`, a line a method that was trained, by personal part."""
    beside = min(len(key.parts), 2)
    drawn = (
        _of("rounds")
        .mark_line()
        .encode(
            x=alt.X("round:Q", axis=_TICKS),
            y=alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False)),
            color=key.colors,
            tooltip=["model:N", "round:Q", alt.Tooltip("loss:Q", format=".4~g")],
        )
        .properties(width=_width(beside), height=_HEIGHT)
        .facet(alt.Facet("part:N", title=None, sort=list(key.parts)), columns=beside)
        .resolve_scale(x="independent", y="independent")
    )
    return _chart("curves", "Training", says, drawn, "rounds")


def parameters(gained: str, says: str, key: Key) -> Chart:
    """Return the change of each model of the data `models` against what a device keeps of its own."""
    points = _of("models").encode(
        x=alt.X("kept:Q", title="numbers kept on a device", scale=alt.Scale(type="log")),
        y=alt.Y("gain:Q", title=gained),
        tooltip=["model:N", "kept:Q", alt.Tooltip("gain:Q", title=gained, format="+.4f")],
    )
    zero = _of("models").mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    dots = points.mark_point(filled=True, size=70).encode(color=key.colors, shape=key.shapes)
    drawn = alt.layer(zero, dots).properties(width=WIDTH, height=_HEIGHT)
    return _chart("parameters", "Change against personal parameters", says, drawn, "models")


def scatter(gained: str, says: str, key: Key) -> Chart:
    """Return every device's change against its training examples, by split; one method may be picked."""
    choices = alt.binding_select(options=[None, *key.shown], labels=["all", *key.shown], name="Show ")
    chosen = alt.selection_point(fields=["method"], bind=choices)
    drawn = (
        _of("devices")
        .transform_filter("isValid(datum.gain)")
        .transform_filter(alt.FieldOneOfPredicate("method", list(key.shown)))
        .mark_point(filled=True, size=36)
        .encode(
            x=alt.X("examples:Q", title="training examples", scale=alt.Scale(zero=False), axis=_TICKS),
            y=alt.Y("gain:Q", title=gained),
            opacity=alt.condition(chosen, alt.value(0.65), alt.value(0.04)),
            tooltip=["device:N", "model:N", "examples:Q", alt.Tooltip("gain:Q", title=gained, format="+.4f")],
            color=key.colors,
            shape=key.shapes,
        )
        .add_params(chosen)
        .properties(width=_width(2), height=_HEIGHT)
        .facet(alt.Facet("split:N", title=None, sort=_SPLITS), columns=2)
    )
    return _chart("scatter", "Every device, by its training examples", says, drawn, "devices")


def violins(gained: str, says: str, models: Sequence[str], *, extent: Sequence[float]) -> Chart:
    """Return how the change is spread over devices, a violin a model, one within the other a split."""
    beside = min(len(models), _VIOLINS)
    low, high = extent
    margin = _MARGIN * (high - low)
    drawn = (
        _of("devices")
        .transform_filter("isValid(datum.gain)")
        .transform_filter(alt.FieldOneOfPredicate("model", list(models)))
        .transform_density(
            "gain", groupby=["model", "split"], as_=["gain", "right"], extent=[low - margin, high + margin]
        )
        .transform_calculate(left="-datum.right")
        .mark_area(orient="horizontal", opacity=0.55)
        .encode(
            x=alt.X("left:Q", title=None, axis=None),
            x2="right:Q",
            y=alt.Y("gain:Q", title=gained),
            color=alt.Color("split:N", sort=_SPLITS, title="split"),
        )
        .properties(width=_width(beside), height=_HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=beside)
    )
    return _chart("violins", "How the change is spread over devices", says, drawn, "devices")


def in_order(gained: str, says: str, models: Sequence[str], *, has_band: bool) -> Chart:
    """Return the change of every device, the least first, with its band where there are several seeds."""
    beside = min(len(models), _FACETS)
    base = alt.Chart().encode(x=alt.X("rank:Q", title="devices in order"))
    tips = {"gain": gained, "low": "least of any seed", "high": "most of any seed"}
    shown = list(tips) if has_band else ["gain"]
    line = base.mark_line(point={"size": 14}).encode(
        y=alt.Y("gain:Q", title=gained),
        tooltip=[
            "device:N",
            "model:N",
            *(alt.Tooltip(f"{name}:Q", title=tips[name], format="+.4f") for name in shown),
        ],
    )
    zero = alt.Chart().mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(0))
    band = base.mark_area(opacity=0.35).encode(y=alt.Y("low:Q", title=gained), y2="high:Q")
    drawn = (
        alt.layer(*([band] if has_band else []), zero, line, data=alt.NamedData(name="devices"))
        .transform_filter("isValid(datum.rank)")
        .transform_filter(alt.FieldOneOfPredicate("model", list(models)))
        .properties(width=_width(beside), height=_HEIGHT)
        .facet(alt.Facet("model:N", title=None, sort=list(models)), columns=beside)
    )
    return _chart("sorted", "Change of every device, in order", says, drawn, "devices")


def histogram(says: str) -> Chart:
    """Return how many training examples devices have."""
    drawn = (
        _of("sizes")
        .mark_bar()
        .encode(
            x=alt.X("examples:Q", bin=alt.Bin(maxbins=30, minstep=1), title="training examples"),
            y=alt.Y("count()", title="devices"),
            tooltip=[alt.Tooltip("examples:Q", bin=alt.Bin(maxbins=30, minstep=1)), "count()"],
        )
        .properties(width=WIDTH, height=_HEIGHT // 2)
    )
    return _chart("examples", "Training examples of devices", says, drawn, "sizes")


def _width(beside: int) -> int:
    """Return the width of one of several charts beside each other."""
    return max(60, WIDTH // beside - _BETWEEN)
