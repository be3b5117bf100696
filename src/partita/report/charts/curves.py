"""Charts of curves: metrics on a sample of devices, by training rounds and by megabytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from partita.report.charts.chart import COUNTS, HEIGHT, Chart, Legend, chart_of, from_data, width_of

TITLE = "Curves"
"""The title of the headline metric's curves, which a page also uses where there are none."""
FURTHER = "Curves of further metrics"
_AXES = {"round": "training rounds", "megabytes": "MB up and down, all devices"}
"""The title of each horizontal axis, by field."""
_FURTHER_HEIGHT = 160
_TEXT = 14
_ROOM = 1.5
"""With labels at the lines, an axis is so many times as long as the longest line."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """How curves are drawn, from the data set `curves`, one line for each `model`."""

    legend: Legend
    """The color of each `method`."""
    title: str = "method"
    """The title of the legend."""
    parts: Sequence[str] = ()
    """The personal parts, a dash pattern each, if there are several."""
    has_band: bool = False
    """Whether lines have a band, from `low` to `high`."""
    longest: Mapping[str, float] | None = None
    """With labels at the ends of lines, from the data set `labels`: the longest line, by field."""
    is_chain: bool = False
    """Whether every line continues the one before it."""

    def headline(self, metric: str, title: str, caption: str) -> Chart:
        """Return the curves of the headline metric; the axis has a title of its own."""
        return chart_of("metric", TITLE, caption, self._panels({metric: title}, HEIGHT), *self._data)

    def further(self, metrics: Mapping[str, str], caption: str) -> Chart:
        """Return the curves of further metrics, by name with the title of the axis."""
        return chart_of("metrics", FURTHER, caption, self._panels(metrics, _FURTHER_HEIGHT), *self._data)

    @property
    def _data(self) -> Sequence[str]:
        return ("curves", "labels") if self.longest else ("curves",)

    def _panels(self, metrics: Mapping[str, str], height: int) -> Any:
        """Return two panels for each metric side by side, by rounds and by megabytes."""
        panels = [
            alt.layer(*self._layers(metric, title, field)).properties(width=width_of(2), height=height)
            for metric, title in metrics.items()
            for field in _AXES
        ]
        return alt.concat(*panels, columns=2).resolve_scale(color="shared", strokeDash="shared")

    def _layers(self, metric: str, title: str, field: str) -> list[alt.Chart]:
        own = from_data("curves").transform_filter(alt.FieldEqualPredicate(field="metric", equal=metric))
        scale = alt.Scale(domainMax=_ROOM * self.longest[field]) if self.longest else alt.Undefined
        x = alt.X(
            f"{field}:Q", title=_AXES[field], axis=COUNTS if field == "round" else alt.Axis(), scale=scale
        )
        y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False))
        drawn = own.encode(x=x, y=y, color=self._colors, tooltip=self._tips(title))
        trained = drawn.transform_filter("datum.is_trained")
        lines = trained.mark_line(point={"size": 26}).encode(detail="model:N", strokeDash=self._dashes)
        tuned = drawn.transform_filter("!datum.is_trained").mark_point(
            shape="diamond", size=110, strokeWidth=2
        )
        layers = [lines, tuned]
        if self.is_chain:
            layers = [own.mark_line(strokeWidth=1, opacity=0.5, color="gray").encode(x=x, y=y), *layers]
        if self.has_band:
            band = trained.mark_area(opacity=0.2).encode(
                y=alt.Y("low:Q", title=title), y2="high:Q", detail="model:N"
            )
            layers = [band, *layers]
        return [*layers, *self._labels(metric, field)]

    def _labels(self, metric: str, field: str) -> list[alt.Chart]:
        if not self.longest:
            return []
        own = from_data("labels").transform_filter(alt.FieldEqualPredicate(field="metric", equal=metric))
        text = own.mark_text(align="left", dx=9, fontSize=_TEXT)
        return [text.encode(x=f"{field}:Q", y="at:Q", text="model:N", color=self._colors)]

    @property
    def _colors(self) -> alt.Color:
        colors = self.legend.colors.title(self.title)
        return colors.legend(None) if self.longest else colors

    @property
    def _dashes(self) -> Any:
        if len(self.parts) < 2:
            return alt.Undefined
        return alt.StrokeDash("part:N", sort=list(self.parts), title="personal part")

    def _tips(self, title: str) -> list[Any]:
        seeds = {"low": "lowest seed", "high": "highest seed"} if self.has_band else {}
        return [
            "model:N",
            alt.Tooltip("round:Q", title="training rounds"),
            alt.Tooltip("megabytes:Q", title="MB", format=",.4~g"),
            *(
                alt.Tooltip(f"{field}:Q", title=name, format=".4f")
                for field, name in {"mean": title, **seeds}.items()
            ),
        ]
