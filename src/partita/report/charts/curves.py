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
PRETRAINING = "pretraining"
"""The `part` of a line that others continue."""
_FURTHER_HEIGHT = 150
_TEXT = 13
_MARGIN, _ROOM = 1.03, 1.45
"""An axis is so many times as long as the longest line: without labels at the lines, and with them."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """How curves are drawn, from the data set `curves`: one line for each `model`."""

    legend: Legend
    """The color of each `method`."""
    title: str
    """The title of the legend."""
    domains: Mapping[str, tuple[float, float]]
    """The lowest and highest value that is drawn, by metric; lines are cut off there."""
    rows: Mapping[str, Sequence[str]]
    """The values of `part` in each row of panels, by the title of the row; the only row has none."""
    longest: Mapping[str, float]
    """The end of the longest line, by field."""
    has_labels: bool = False
    """Whether lines have labels at their ends, from the data set `labels`, and no legend."""
    has_band: bool = False
    """Whether lines have a band, from `low` to `high`."""
    is_chain: bool = False
    """Whether every line continues the one before it."""

    def headline(self, metric: str, axis: str, caption: str) -> Chart:
        """Return the curves of the headline metric; `axis` is the title of its axis."""
        return chart_of("metric", TITLE, caption, self._panels({metric: axis}, HEIGHT), *self._data)

    def further(self, metrics: Mapping[str, str], caption: str) -> Chart:
        """Return the curves of further metrics, given the title of the axis of each."""
        return chart_of("metrics", FURTHER, caption, self._panels(metrics, _FURTHER_HEIGHT), *self._data)

    @property
    def _data(self) -> Sequence[str]:
        return ("curves", "labels") if self.has_labels else ("curves",)

    def _panels(self, metrics: Mapping[str, str], height: int) -> Any:
        """Return two panels side by side for each metric and row: by rounds and by megabytes."""
        panels: list[Any] = []
        for metric, axis in metrics.items():
            for row in self.rows:
                title = {"title": alt.TitleParams(row, anchor="start", fontSize=_TEXT)} if row else {}
                for x in _AXES:
                    panel = alt.layer(*self._layers(metric, axis, x, row))
                    panels.append(panel.properties(width=width_of(2), height=height, **title))
        return alt.concat(*panels, columns=2).resolve_scale(color="shared")

    def _layers(self, metric: str, axis: str, x: str, row: str) -> list[alt.Chart]:
        of_metric = alt.FieldEqualPredicate(field="metric", equal=metric)
        in_row = alt.FieldOneOfPredicate(field="part", oneOf=list(self.rows[row]))
        own = from_data("curves").transform_filter(of_metric).transform_filter(in_row)
        scale = alt.Scale(domain=[0, (_ROOM if self.has_labels else _MARGIN) * self.longest[x]], nice=False)
        across = alt.X(f"{x}:Q", title=_AXES[x], axis=COUNTS if x == "round" else alt.Axis(), scale=scale)
        up = alt.Y("mean:Q", title=axis, scale=alt.Scale(domain=list(self.domains[metric]), zero=False))
        drawn = own.encode(x=across, y=up, color=self._colors, tooltip=self._tips(axis))
        trained = drawn.transform_filter("datum.is_trained")
        layers = [
            trained.mark_line(clip=True, point={"size": 26}).encode(detail="model:N"),
            drawn.transform_filter("!datum.is_trained").mark_point(shape="diamond", size=110, strokeWidth=2),
        ]
        if self.is_chain:
            chain = own.mark_line(clip=True, strokeWidth=1, opacity=0.6, color="gray")
            layers.insert(0, chain.encode(x=across, y=up))
        if self.has_band:
            band = trained.mark_area(clip=True, opacity=0.18)
            layers.insert(0, band.encode(y=alt.Y("low:Q", title=axis), y2="high:Q", detail="model:N"))
        return [*layers, *self._labels(metric, x, row)]

    def _labels(self, metric: str, x: str, row: str) -> list[alt.Chart]:
        """Return the labels of lines: right of their ends; of a line that others continue, left of it."""
        if not self.has_labels:
            return []
        own = from_data("labels").encode(x=f"{x}:Q", y="at:Q", text="method:N", color=self._colors)
        for name, value in {"metric": metric, "row": row}.items():
            own = own.transform_filter(alt.FieldEqualPredicate(field=name, equal=value))
        is_continued = f"datum.part === '{PRETRAINING}'"
        return [
            own.transform_filter(f"!({is_continued})").mark_text(align="left", dx=9, fontSize=_TEXT),
            own.transform_filter(is_continued).mark_text(align="right", dx=-9, dy=-9, fontSize=_TEXT),
        ]

    @property
    def _colors(self) -> alt.Color:
        colors = self.legend.colors.title(self.title)
        if self.has_labels:
            return colors.legend(None)
        shown = list(self.legend.shown)
        return colors.legend(
            alt.Legend(values=shown, symbolType="stroke", symbolStrokeWidth=4, symbolOpacity=1)
        )

    def _tips(self, axis: str) -> list[Any]:
        seeds = {"low": "lowest seed", "high": "highest seed"} if self.has_band else {}
        numbers = {"mean": axis, **seeds}
        return [
            "model:N",
            alt.Tooltip("round:Q", title="training rounds"),
            alt.Tooltip("megabytes:Q", title="MB", format=",.4~g"),
            *(alt.Tooltip(f"{name}:Q", title=title, format=".4f") for name, title in numbers.items()),
        ]
