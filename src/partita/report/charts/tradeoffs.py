"""A point for each model: its metric against what it costs, with the Pareto front as a line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import altair as alt

from partita.report.charts.chart import GRAY, LETTER, TEXT_SIZE, WIDTH, Chart, Legend, chart_of, from_data
from partita.report.charts.cost_axis import CostAxis
from partita.report.charts.labels import Label, Named, Place, Surroundings, joined, placed_labels, together

_HEIGHT = 360
_ROOM = 670
"""The narrowest chart that has names beside points; in a wider one they are farther apart."""
_PHONE = 270
"""The width of a chart on a phone, which has numbers beside points and a list of names."""
_MARGIN = 0.08
"""The share of the height that is added above and below the points."""
_STEP = 5
"""The distance of places on a line, in pixels."""
_LIST, _LINE = 66, 20
"""Where a list of names begins below the chart, and the height of its lines, in pixels."""


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """The contents of a chart of models by cost."""

    name: str
    title: str
    caption: str
    cost: str
    """The column of the dataset `models`; the column `COST_front` says which are on the Pareto front."""
    points: Sequence[Mapping[str, Any]]
    """The data of the models that are drawn, the best first."""
    axes: tuple[str, str]
    """The titles of both axes."""
    legend: Legend
    """The color of each model that has one; these and those on the front are named at their points."""

    @cached_property
    def axis(self) -> CostAxis:
        """The axis of the cost."""
        return CostAxis([point[self.cost] for point in self.points])

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The ends of the metric's axis."""
        means = [point["point"] for point in self.points]
        margin = _MARGIN * (max(means) - min(means)) or _MARGIN
        return min(means) - margin, max(means) + margin

    def place(self, point: Mapping[str, Any], width: int) -> Place:
        """Return where a model is, in pixels."""
        (left, right), (low, high) = self.axis.ends, self.ends
        across = (self.axis.place_of(point[self.cost]) - left) / (right - left)
        return across * width, (high - point["point"]) / (high - low) * _HEIGHT

    def values(self, place: Place, width: int) -> tuple[float, float]:
        """Return the place in pixels as values of both axes."""
        (left, right), (low, high) = self.axis.ends, self.ends
        return left + place[0] / width * (right - left), high - place[1] / _HEIGHT * (high - low)

    def surroundings(self, width: int) -> Surroundings:
        """Return all points and the line of the front, in pixels."""
        front = [point for point in self.points if point[f"{self.cost}_front"]]
        corners = sorted(self.place(point, width) for point in front)
        lines: list[Place] = []
        for (x, y), (next_x, next_y) in pairwise(corners):
            lines += [(x + step, y) for step in range(0, round(next_x - x), _STEP)]
            lines += [(next_x, min(y, next_y) + step) for step in range(0, round(abs(next_y - y)), _STEP)]
        points = [self.place(point, width) for point in self.points]
        return Surroundings(width=width, height=_HEIGHT, points=points, lines=lines)

    @property
    def named(self) -> Sequence[str]:
        """The models that are named at their points: those on the front, and those that have a color."""
        front = [point["model"] for point in self.points if point[f"{self.cost}_front"]]
        return [*front, *self.legend.shown]

    def groups(self, width: int) -> list[list[Named]]:
        """Return the models that are named, in groups at one place; the front and the best first."""
        named = [point for point in self.points if point["model"] in self.named]
        named.sort(key=lambda point: not point[f"{self.cost}_front"])
        return together([Named(name=each["model"], at=self.place(each, width)) for each in named])


def tradeoff(content: Tradeoff) -> Chart:
    """Return the chart; on a narrow page, models have numbers and their names are below."""
    parts = content.name, content.title, content.caption
    wide = chart_of(*parts, _layers(content, _names(content)), "models")
    return replace(wide, narrow=chart_of(*parts, _layers(content, _numbers(content))).spec)


def _layers(content: Tradeoff, texts: Iterator[alt.Chart]) -> Any:
    cost, front = content.cost, f"datum.{content.cost}_front"
    base = _base(content)
    line = base.transform_filter(front).mark_line(interpolate="step-after", color=GRAY, strokeWidth=1.5)
    points = base.mark_point(filled=True).encode(
        color=_colors(content),
        size=alt.condition(front, alt.value(150), alt.value(90)),
        opacity=alt.OpacityValue(0.9),
        tooltip=[
            alt.Tooltip("model:N"),
            alt.Tooltip("point:Q", title="mean", format=".4f"),
            alt.Tooltip(f"{cost}:Q", format=",.6~g"),
        ],
    )
    edge = from_data("models").transform_filter(_is(content.points[0]["model"]))
    gap = edge.mark_rule(strokeDash=[1, 4], strokeWidth=1.5).encode(x=alt.XDatum(content.axis.break_at))
    layers = [*([gap] if content.axis.apart else []), line.encode(order=alt.Order("place:Q")), *texts, points]
    return alt.layer(*layers).properties(width=WIDTH, height=_HEIGHT)


def _base(content: Tradeoff) -> alt.Chart:
    scale = alt.Scale(domain=list(content.ends), zero=False, nice=False)
    drawn = alt.FieldOneOfPredicate("model", [point["model"] for point in content.points])
    return (
        from_data("models")
        .transform_filter(drawn)
        .transform_calculate(place=content.axis.place_expression(content.cost))
        .encode(
            x=content.axis.encoding(content.axes[0]),
            y=alt.Y("point:Q", title=content.axes[1], scale=scale, axis=alt.Axis(tickCount=5)),
        )
    )


def _colors(content: Tradeoff) -> Any:
    """Return the color of each model that has one, and gray for all others."""
    named = alt.FieldOneOfPredicate("model", list(content.legend.shown))
    return alt.condition(named, content.legend.colors.legend(None), alt.value(GRAY))


def _is(model: str) -> alt.FieldEqualPredicate:
    return alt.FieldEqualPredicate(field="model", equal=model)


def _names(content: Tradeoff) -> Iterator[alt.Chart]:
    """Yield the names beside their points, with lines to those farther away."""
    named = [
        Named(name=text, at=group[0].at, length=LETTER * len(text))
        for group in content.groups(_ROOM)
        for text in [joined([one.name for one in group])]
    ]
    for label in placed_labels(named, content.surroundings(_ROOM)):
        yield from _drawn(content, label, _ROOM)


def _numbers(content: Tradeoff) -> Iterator[alt.Chart]:
    """Yield a number beside each named point, and a list of names below the chart."""
    groups = content.groups(_PHONE)
    named = [
        Named(name=f"{number}", at=group[0].at, length=LETTER * len(f"{number}"))
        for number, group in enumerate(groups, start=1)
    ]
    for label in placed_labels(named, content.surroundings(_PHONE)):
        yield from _drawn(content, label, _PHONE)
    one = from_data("models").transform_filter(_is(content.points[0]["model"]))
    for number, group in enumerate(groups, start=1):
        line = one.mark_text(align="left", fontSize=TEXT_SIZE, limit=alt.ExprRef("width + 45"))
        yield line.encode(
            x=alt.XValue(-45),
            y=alt.YValue(_HEIGHT + _LIST + _LINE * number),
            text=alt.TextValue(f"{number}  {joined([one.name for one in group])}"),
        )


def _drawn(content: Tradeoff, label: Label, width: int) -> Iterator[alt.Chart]:
    """Yield the text of a label, and its line."""
    one = from_data("models").transform_filter(_is(content.points[0]["model"]))
    (from_x, from_y), (x, y) = (content.values(place, width) for place in (label.point, label.at))
    if label.has_line:
        yield one.mark_rule(strokeWidth=1).encode(
            x=alt.XDatum(from_x), y=alt.YDatum(from_y), x2=alt.X2Datum(x), y2=alt.Y2Datum(y)
        )
    space = {"left": 3, "right": -3, "center": 0}[label.align] if label.has_line else 0
    down = round(label.middle - label.at[1])
    text = one.mark_text(align=label.align, dx=space, dy=down, fontSize=TEXT_SIZE, fontWeight="bold")
    yield text.encode(x=alt.XDatum(x), y=alt.YDatum(y), text=alt.TextValue(label.name))
