"""A point for each model: its metric against what it costs, with the Pareto front as a line."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import altair as alt

from partita.report.charts.chart import LETTER, TEXT_SIZE, WIDTH, Chart, Legend, chart_of, from_data
from partita.tasks.metrics import Direction

_Align = Literal["left", "right", "center"]
_HEIGHT = 340
_LEFT = 0.5
"""Labels of points in this share of the axis extend to the right, those of others to the left."""
_PHONE = 270
"""The width of a chart on a phone."""
_INNER = 0.85
"""The share of the height that points take."""
_CHEAPER = 0.9
"""The share of a cost below which another is clearly lower."""
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


def _drawn(content: Tradeoff, room: int) -> Any:
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
        color=_colors(content),
        shape=content.legend.shapes,
        size=alt.condition(f"datum.{cost}_front", alt.value(190), alt.value(90)),
        opacity=alt.condition(f"datum.{cost}_front", alt.value(1), alt.value(0.6)),
        tooltip=["model:N", alt.Tooltip("mean:Q", format=".4f"), alt.Tooltip(f"{cost}:Q", format=",.6~g")],
    )
    names = [
        base.transform_filter(alt.FieldEqualPredicate(field="model", equal=label.model))
        .mark_text(align=label.align, dx=label.dx, dy=label.dy, fontSize=TEXT_SIZE, fontWeight="bold")
        .encode(text="model:N")
        for label in _labels(content, axis, room)
    ]
    layers = alt.layer(line.encode(order="place:Q"), points, *names)
    return layers.properties(width=WIDTH, height=_HEIGHT)


def _colors(content: Tradeoff) -> Any:
    """Return the color of each method; of many methods, gray for those that the legend does not show."""
    legend = content.legend
    if set(legend.shown) >= {point["method"] for point in content.points}:
        return legend.colors
    named = alt.FieldOneOfPredicate("method", list(legend.shown))
    return alt.condition(named, replace(legend, methods=legend.shown).colors, alt.value("#808890"))


@dataclass(frozen=True, kw_only=True)
class _Label:
    """A model's name at its point; places in pixels, y downward."""

    model: str
    x: float
    y: float
    align: _Align
    dy: int

    @property
    def dx(self) -> int:
        return {"left": -4, "right": 4, "center": 0}[self.align]

    @property
    def ends(self) -> tuple[float, float]:
        """Where the name begins and ends."""
        length, start = LETTER * len(self.model), self.x + self.dx
        before = {"left": 0.0, "right": length, "center": length / 2}[self.align]
        return start - before, start - before + length

    def overlaps(self, other: "_Label") -> bool:
        """Return whether two names would be drawn over each other."""
        (low, high), (other_low, other_high) = self.ends, other.ends
        is_near = abs(self.y + self.dy - other.y - other.dy) < TEXT_SIZE + 4
        return is_near and low < other_high and other_low < high

    def fits(self, room: int) -> bool:
        """Return whether the name stays inside the chart."""
        return self.ends[0] > -LETTER and self.ends[1] < room + LETTER


def _labels(content: Tradeoff, axis: "CostAxis", room: int) -> list[_Label]:
    """Return the names of the reference and of the models on the front that fit without overlaps.

    The best come first; of models on the front that cost about the same, only the best one is named.
    """
    placed: list[_Label] = []
    cheapest = math.inf
    for point in sorted(content.points, key=lambda point: _down(content, point)):
        cost, is_front = point[content.cost], point[f"{content.cost}_front"]
        is_reference = point["model"] == content.reference
        if not is_reference and not (is_front and cost <= _CHEAPER * cheapest):
            continue
        cheapest = cost if is_front else cheapest
        for label in _candidates(content, axis.share_of(cost), room, point):
            if label.fits(room) and not any(label.overlaps(other) for other in placed):
                placed.append(label)
                break
    return placed


def _candidates(content: Tradeoff, share: float, room: int, point: Mapping[str, Any]) -> Iterator[_Label]:
    """Yield the places for a name: no point can be above and left of a model on the front."""
    side: _Align = "left" if share < _LEFT else "right"
    below = 19 if content.direction == "up" else -19
    is_front = point[f"{content.cost}_front"]
    places: list[tuple[_Align, int]] = (
        [(side, -below + 4), (side, below)] if is_front else [("center", below), (side, below)]
    )
    heights = [_down(content, one) for one in content.points]
    extent = max(heights) - min(heights) or 1.0
    y = (_down(content, point) - min(heights)) / extent * _HEIGHT * _INNER
    y = y if content.direction == "up" else -y
    for align, dy in places:
        yield _Label(model=point["model"], x=share * room, y=y, align=align, dy=dy)


def _down(content: Tradeoff, point: Mapping[str, Any]) -> float:
    """Return how far down a point is if the best are at the top."""
    return -point["mean"] if content.direction == "up" else point["mean"]


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
