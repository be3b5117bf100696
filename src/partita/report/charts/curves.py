"""Charts of curves: metrics on a sample of devices, by training rounds and by megabytes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from partita.report.charts.chart import (
    HEIGHT,
    LETTER,
    TEXT_SIZE,
    THIN,
    WIDTH,
    Chart,
    Legend,
    chart_of,
    from_data,
)

TITLE = "Curves"
"""The title of the headline metric's curves, which a page also uses where there are none."""
FURTHER = "Curves of further metrics"
_AXES = {"round": "training rounds", "megabytes": "MB up and down, all devices"}
"""The title of each horizontal axis, by field."""
_TICKS = {
    "round": alt.Axis(tickMinStep=1, tickCount=8, labelOverlap=True, format=",d"),
    "megabytes": alt.Axis(tickCount=8, labelOverlap=True, format=",.6~g"),
}
"""The ticks of each horizontal axis: whole rounds, but fractions of a megabyte."""
_FURTHER_HEIGHT = 150
_MARGIN = 1.03
"""An axis is so many times as long as the longest line."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """How curves are drawn, from the data set `curves`: one line for each `model`, in color if `is_shown`.

    A wide page has their names beside them, from the data set `labels`; a narrow one has a legend.
    """

    legend: Legend
    """The color of each line."""
    domains: Mapping[str, tuple[float, float]]
    """The lowest and highest value that is drawn, by metric; lines are cut off there."""
    longest: Mapping[str, float]
    """The end of the longest line, by field."""
    has_band: bool = False
    """Whether lines have a band, from `low` to `high`."""
    is_chain: bool = False
    """Whether every line continues the one before it."""

    def headline(self, metric: str, axis: str, caption: str) -> Chart:
        """Return the curves of the headline metric; `axis` is the title of its axis."""
        return self._chart("metric", TITLE, caption, {metric: axis})

    def further(self, metrics: Mapping[str, str], caption: str) -> Chart:
        """Return the curves of further metrics, given the title of the axis of each."""
        return self._chart("metrics", FURTHER, caption, metrics)

    def _chart(self, name: str, title: str, caption: str, metrics: Mapping[str, str]) -> Chart:
        """Return a chart with a panel for each metric and axis."""
        height = HEIGHT if name == "metric" else _FURTHER_HEIGHT
        wide, narrow = (self._panels(metrics, height, has_labels=each) for each in (True, False))
        chart = chart_of(name, title, caption, wide, "curves", "labels")
        return replace(chart, narrow=chart_of(name, title, caption, narrow).spec)

    def _panels(self, metrics: Mapping[str, str], height: int, *, has_labels: bool) -> Any:
        width = WIDTH - round(LETTER * max(map(len, self.legend.shown))) if has_labels else WIDTH
        panels = [
            alt.layer(
                *self._lines(metric, axis, x, has_legend=not has_labels),
                *([self._labels(metric, x)] if has_labels else []),
            ).properties(width=width, height=height)
            for metric, axis in metrics.items()
            for x in _AXES
        ]
        return alt.vconcat(*panels).resolve_scale(color="shared")

    def _lines(self, metric: str, axis: str, x: str, *, has_legend: bool) -> list[Any]:
        across = alt.X(f"{x}:Q", title=_AXES[x], axis=_TICKS[x], scale=self._across(x))
        up = alt.Y("mean:Q", title=axis, scale=alt.Scale(domain=list(self.domains[metric]), zero=False))
        place = {"x": across, "y": up, "detail": alt.Detail("model:N"), "tooltip": self._tips(axis)}
        colored = {**place, "color": self._colors(has_legend=has_legend)}
        others = _where(metric, is_shown=False, is_trained=True)
        trained = _where(metric, is_shown=True, is_trained=True)
        finetuned = _where(metric, is_shown=True, is_trained=False)
        lines: list[Any] = [
            others.mark_line(clip=True, **THIN).encode(**place),
            trained.mark_line(clip=True, point={"size": 26}).encode(**colored),
            finetuned.mark_point(shape="diamond", size=110, strokeWidth=2).encode(**colored),
        ]
        if self.is_chain:
            lines.insert(0, _where(metric).mark_line(clip=True, **THIN).encode(x=across, y=up))
        if self.has_band:
            band = trained.mark_area(clip=True, opacity=0.15).encode(**colored)
            lines.insert(0, band.encode(y=alt.Y("low:Q", title=axis), y2=alt.Y2("high:Q")))
        return lines

    def _labels(self, metric: str, x: str) -> Any:
        """Return the names of lines, right of the panel, each as high as the end of its line."""
        end = alt.XDatum(_MARGIN * self.longest[x], scale=self._across(x))
        texts = _where(metric, "labels").mark_text(align="left", dx=8, fontSize=TEXT_SIZE, fontWeight="bold")
        return texts.encode(
            x=end, y=alt.Y("at:Q"), text=alt.Text("model:N"), color=self._colors(has_legend=False)
        )

    def _across(self, x: str) -> alt.Scale:
        return alt.Scale(domain=[0, _MARGIN * self.longest[x]], nice=False)

    def _colors(self, *, has_legend: bool) -> alt.Color:
        if not has_legend:
            return self.legend.colors.legend(None)
        shown = list(self.legend.shown)
        return self.legend.colors.legend(
            alt.Legend(values=shown, symbolType="stroke", symbolStrokeWidth=4, symbolOpacity=1)
        )

    def _tips(self, axis: str) -> list[Any]:
        seeds = {"low": "lowest seed", "high": "highest seed"} if self.has_band else {}
        numbers = {"mean": axis, **seeds}
        return [
            alt.Tooltip("model:N"),
            alt.Tooltip("round:Q", title="training rounds", format=",.5~g"),
            alt.Tooltip("megabytes:Q", title="MB", format=",.4~g"),
            *(alt.Tooltip(f"{name}:Q", title=title, format=".4f") for name, title in numbers.items()),
        ]


def _where(metric: str, data: str = "curves", **kinds: bool) -> alt.Chart:
    """Return an empty chart of one metric's points of a kind.

    All conditions are one filter: with several, Vega-Lite gives up on simplifying them and logs a warning.
    """
    conditions = [
        alt.FieldEqualPredicate(field=name, equal=value)
        for name, value in {"metric": metric, **kinds}.items()
    ]
    return from_data(data).transform_filter(*conditions)
