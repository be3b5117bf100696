"""A chart without its data, how it encodes models, and the pieces that all charts are made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from partita.shown import shown_in

WIDTH = 820
"""The width of a chart in pixels; on a narrow page every part of a chart is scaled down."""
HEIGHT = 240
"""The height of a chart that has one panel."""
NAMES = frozenset(
    (
        *("forest", "bytes", "parameters", "metric", "metrics", "curves"),
        *("scatter", "violins", "sorted", "examples"),
    )
)
"""The names of all charts, which are the names of their files."""
TEXT_SIZE = 14
"""The size of texts in pixels."""
LETTER = 8.5
"""The width of a bold letter in pixels, nearly."""
GRAY = "#808890"
"""The color of models without one of their own, on a light and on a dark page."""
THIN = {"strokeWidth": 1, "opacity": 0.6, "color": GRAY}
"""The lines of models without a color."""
_GAP = 24
"""Pixels between two charts side by side."""
_CONFIG = {
    "axis": {"labelFontSize": TEXT_SIZE, "titleFontSize": TEXT_SIZE, "titleFontWeight": "normal"},
    "legend": {"labelFontSize": TEXT_SIZE, "titleFontSize": TEXT_SIZE, "symbolSize": 120},
    "header": {"labelFontSize": TEXT_SIZE + 1, "labelFontWeight": "bold", "labelLimit": 0},
    "line": {"strokeWidth": 2.5},
}
"""Texts and lines that are readable at arm's length."""
COUNTS = alt.Axis(tickMinStep=1, labelOverlap=True, format=",d")


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
    narrow: Mapping[str, Any] | None = None
    """The specification for a narrow page, if it is another."""


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The colors of models."""

    models: Sequence[str]
    """All models on the page that have a color, in the order of colors: a model keeps its color."""
    shown: Sequence[str]
    """The models that this chart shows in color."""

    @property
    def colors(self) -> alt.Color:
        """The color of each model."""
        scale, legend = alt.Scale(domain=list(self.models)), alt.Legend(values=list(self.shown))
        return alt.Color("model:N", scale=scale, title="model", legend=legend)


def chart_of(name: str, title: str, caption: str, drawn: Any, *data: str) -> Chart:
    """Return a drawn chart with its name, its texts and the names of its datasets."""
    spec = _with_backslashes(
        shown_in(drawn.to_dict(validate=False) | {"description": caption, "config": _CONFIG})
    )
    if "facet" in spec and "transform" in spec["spec"]:
        # Panels are split and sorted after the transforms, not before.
        spec["transform"] = spec["spec"].pop("transform")
    return Chart(name=name, title=title, caption=caption, spec=spec, data=data)


def _with_backslashes(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification whose titles are shown as they are, also if they have a backslash.

    Vega-Lite writes titles into expressions, for tooltips and for descriptions of marks, and does not escape
    backslashes there. So those of tooltips are escaped here, and such a chart has no descriptions of marks.
    """
    if not any("\\" in title for title in _titles(spec)):
        return spec
    return {**_with_escaped_tips(spec), "config": {**spec["config"], "aria": False}}


def _titles(spec: Any) -> Iterator[str]:
    """Yield all titles in a specification."""
    if isinstance(spec, list):
        for part in spec:
            yield from _titles(part)
    elif isinstance(spec, dict):
        if isinstance(spec.get("title"), str):
            yield spec["title"]
        yield from _titles(list(spec.values()))


def _with_escaped_tips(spec: Any) -> Any:
    """Return a part of a specification with the backslashes in titles of tooltips escaped."""
    if isinstance(spec, list):
        return [_with_escaped_tips(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    found = {key: _with_escaped_tips(part) for key, part in spec.items()}
    if isinstance(tips := found.get("tooltip"), list):
        found["tooltip"] = [
            {**tip, "title": tip["title"].replace("\\", "\\\\")} if tip.get("title") else tip for tip in tips
        ]
    return found


def from_data(data: str) -> alt.Chart:
    """Return an empty chart of a dataset, by name."""
    return alt.Chart(alt.NamedData(name=data))


def width_of(columns: int) -> int:
    """Return the width of one of several charts side by side."""
    return max(60, WIDTH // columns - _GAP)
