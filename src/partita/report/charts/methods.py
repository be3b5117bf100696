"""A point for each model: its metric against what it costs, with the Pareto front as a line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt

from partita.report.charts.chart import TEXT_SIZE, WIDTH, Chart, Legend, chart_of, from_data
from partita.tasks.metrics import Direction

_HEIGHT = 340
_LEFT = 0.5
"""Labels of points in this share of the axis extend to the right, those of others to the left."""
_LETTER = 8.5
"""The width of a letter in pixels, nearly."""
_PHONE = 270
"""The width of a chart on a phone."""
_DECADE = 10
"""Costs whose largest is so many times the smallest have a logarithmic axis."""


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """The contents of a chart of models by cost."""

    name: str
    title: str
    caption: str
    cost: str
    """The column of the dataset `models`; the column `COST_front` says which are on the Pareto front."""
    points: Sequence[Mapping[str, Any]]
    """The data of the models that are drawn."""
    axes: tuple[str, str]
    """The titles of both axes."""
    direction: Direction
    reference: str
    """A model that is named also if it is not on the front."""
    legend: Legend


def tradeoff(content: Tradeoff) -> Chart:
    """Return the chart; the models on the front are named at their points, all others in the legend."""
    wide, narrow = (
        chart_of(content.name, content.title, content.caption, _drawn(content, room), "models")
        for room in (WIDTH, _PHONE)
    )
    return replace(wide, narrow=narrow.spec)


def _drawn(content: Tradeoff, room: int) -> alt.LayerChart:
    """Return the chart with as many names as fit into a width in pixels."""
    cost, drawn = content.cost, [point["model"] for point in content.points]
    axis = CostAxis([point[cost] for point in content.points])
    scale = alt.Scale(zero=False, padding=24)
    base = (
        from_data("models")
        .transform_filter(alt.FieldOneOfPredicate("model", drawn))
        .transform_calculate(place=axis.place_of(cost))
        .encode(
            x=axis.encoding(content.axes[0]),
            y=alt.Y("mean:Q", title=content.axes[1], scale=scale, axis=alt.Axis(tickCount=5)),
        )
    )
    line = base.transform_filter(f"datum.{cost}_front").mark_line(interpolate="step-after", opacity=0.7)
    points = base.mark_point(filled=True).encode(
        color=content.legend.colors,
        shape=content.legend.shapes,
        size=alt.condition(f"datum.{cost}_front", alt.value(190), alt.value(90)),
        opacity=alt.condition(f"datum.{cost}_front", alt.value(1), alt.value(0.6)),
        tooltip=["model:N", alt.Tooltip("mean:Q", format=".4f"), alt.Tooltip(f"{cost}:Q", format=",.6~g")],
    )
    names = [
        base.transform_filter(alt.FieldEqualPredicate("model", label.model))
        .mark_text(align=label.align, dx=label.dx, dy=label.dy, fontSize=TEXT_SIZE, fontWeight="bold")
        .encode(text="model:N")
        for label in _labels(content, axis, room)
    ]
    layers = alt.layer(line.encode(order="place:Q"), points, *names)
    return layers.properties(width=WIDTH, height=_HEIGHT)


@dataclass(frozen=True, kw_only=True)
class _Label:
    """A model's name at its point."""

    model: str
    x: float
    y: float
    align: Literal["left", "right"]
    dy: int

    @property
    def dx(self) -> int:
        return -4 if self.align == "left" else 4

    @property
    def _ends(self) -> tuple[float, float]:
        start = self.x + self.dx
        length = _LETTER * len(self.model)
        return (start, start + length) if self.align == "left" else (start - length, start)

    def overlaps(self, other: "_Label") -> bool:
        """Return whether two names would be drawn over each other."""
        (low, high), (other_low, other_high) = self._ends, other._ends
        is_near = abs(self.y + self.dy - other.y - other.dy) < TEXT_SIZE + 4
        return is_near and low < other_high and other_low < high

    def fits(self, room: int) -> bool:
        """Return whether the name stays inside the chart."""
        return self._ends[0] > -_LETTER and self._ends[1] < room + _LETTER


def _labels(content: Tradeoff, axis: "CostAxis", room: int) -> list[_Label]:
    """Return the names of the models on the front and of the reference, the best first, without overlaps.

    No model is better and cheaper than one on the front: its name is where no point can be.
    """
    sign = 1 if content.direction == "up" else -1
    means = [sign * point["mean"] for point in content.points]
    height = max(means) - min(means) or 1.0
    labels: list[_Label] = []
    for point in sorted(content.points, key=lambda point: -sign * point["mean"]):
        is_front = point[f"{content.cost}_front"]
        if not is_front and point["model"] != content.reference:
            continue
        share = axis.share_of(point[content.cost])
        y = -(sign * point["mean"] - min(means)) / height * _HEIGHT * 0.85
        label = _Label(
            model=point["model"],
            x=share * room,
            y=sign * y,
            align="left" if share < _LEFT else "right",
            dy=-14 * sign if is_front else 16 * sign,
        )
        if label.fits(room) and not any(label.overlaps(other) for other in labels):
            labels.append(label)
    return labels


@dataclass(frozen=True)
class CostAxis:
    """The axis of a cost: logarithmic where it spans decades, with a place of its own for a cost of 0."""

    costs: Sequence[float]

    @property
    def is_log(self) -> bool:
        """Whether the axis is logarithmic."""
        positive = self._positive
        return bool(positive) and max(positive) >= _DECADE * min(positive)

    @property
    def _positive(self) -> list[float]:
        return [cost for cost in self.costs if cost > 0]

    @property
    def zero(self) -> float:
        """The place of a cost of 0."""
        return min(self._positive) / 4 if self.is_log else 0.0

    def place_of(self, column: str) -> str:
        """Return the expression for the place of a model's cost."""
        return f"datum.{column} > 0 ? datum.{column} : {self.zero}"

    def encoding(self, title: str) -> alt.X:
        """Return the encoding of the place."""
        if not self.is_log:
            scale = alt.Scale(zero=False, padding=24)
            return alt.X("place:Q", title=title, scale=scale, axis=alt.Axis(tickCount=6, format="~s"))
        low = self.zero if 0 in self.costs else min(self._positive)
        ends = low / 1.6, max(self._positive) * 1.6
        powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])))
        ticks = [10.0**power for power in powers if 10.0**power > (low * 1.5 if 0 in self.costs else ends[0])]
        label = f"datum.value < {self.zero * 1.01} ? '0' : format(datum.value, '~s')"
        axis = alt.Axis(values=[*([low] if 0 in self.costs else []), *ticks], labelExpr=label)
        return alt.X(
            "place:Q", title=title, scale=alt.Scale(type="log", domain=list(ends), nice=False), axis=axis
        )

    def share_of(self, cost: float) -> float:
        """Return where a cost is on the axis, from 0 at its left end to 1."""
        low, own, high = (self._measure(value) for value in (min(self.costs), cost, max(self.costs)))
        return (own - low) / (high - low) if high > low else 0.5

    def _measure(self, cost: float) -> float:
        return math.log(cost or self.zero) if self.is_log else cost
