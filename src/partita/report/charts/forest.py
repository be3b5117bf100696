"""The forest plot: a row for each model, its mean and the interval of its difference from the reference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from partita.report.charts.chart import LETTER, TEXT_SIZE, Chart, chart_of, from_data
from partita.report.differences import BETTER, UNCLEAR, UNKNOWN, WORSE

REFERENCE = "reference"
"""The verdict of the reference itself."""
_SHAPES = {
    BETTER: "square",
    UNCLEAR: "circle",
    WORSE: "triangle-down",
    UNKNOWN: "circle",
    REFERENCE: "diamond",
}
"""The shape of a mean by verdict; the page's palette `ordinal` has their colors in the same order."""
_ROW, _NARROW_ROW = 29, 54
"""The height of a model's row in pixels; on a narrow page its name is above its bar."""
_WIDTH, _NARROW_WIDTH = 560, 1040
"""The width of the bars; on a narrow page they have the room of names and numbers too."""
_NARROW_TEXT = 13
"""The size of names and numbers on a narrow page, in pixels."""
_DASH, _DASH_OFFSET = 36, 8
"""The length of the reference's line in a row of a narrow page, and how far below its middle it is drawn."""
_MEAN, _GAIN = 70, 160
"""Where the columns of means and differences end, in pixels right of the bars."""

_HEADINGS = {"point": "mean", "gain": "difference"}
"""The headings of the columns of numbers."""


@dataclass(frozen=True, kw_only=True)
class Forest:
    """The contents of a forest plot."""

    title: str
    caption: str
    models: Sequence[str]
    """All models, the best first."""
    metric: str
    """The title of the axis."""
    ends: tuple[float, float]
    """The ends of the axis; a bar beyond them ends in an arrow, a mean beyond them is a hollow arrow."""
    line: float | None
    """The mean of the reference."""
    label: str = ""
    """The name and the mean of the reference."""

    @property
    def inside(self) -> str:
        """The expression for whether a mean is on the axis."""
        low, high = self.ends
        return f"datum.point >= {low} && datum.point <= {high}"

    @property
    def x(self) -> alt.X:
        """The encoding of a mean."""
        return alt.X("point:Q", **self._across)

    @property
    def x_line(self) -> alt.XDatum:
        """The encoding of the reference's mean."""
        return alt.XDatum(self.line, **self._across)

    @property
    def _across(self) -> dict[str, Any]:
        scale = alt.Scale(domain=list(self.ends), clamp=True, nice=False, zero=False)
        return {"title": self.metric, "scale": scale, "axis": alt.Axis(tickCount=5, format=".4~f", grid=True)}

    def y(self, axis: alt.Axis | None) -> alt.Y:
        """The encoding of a model's row."""
        return alt.Y("model:N", sort=list(self.models), title=None, axis=axis)


def forest(content: Forest) -> Chart:
    """Return the plot, with names left of the bars, or on a narrow page above them."""
    names = alt.Axis(labelLimit=330, domain=False, ticks=False, labelPadding=8)
    y = content.y(names)
    columns = [*_column(content, y, "point", ".4f", _MEAN), *_column(content, y, "gain", "+.4f", _GAIN)]
    wide = alt.layer(*_line(content), *_marks(content, names), *columns)
    wide = wide.properties(width=_WIDTH, height=alt.Step(_ROW))
    narrow = alt.layer(*_line(content, is_narrow=True), *_marks(content, None), *_texts_above(content))
    narrow = narrow.properties(width=_NARROW_WIDTH, height=alt.Step(_NARROW_ROW))
    chart = chart_of("forest", content.title, content.caption, wide, "models")
    return replace(chart, narrow=chart_of("forest", "", content.caption, narrow).spec)


def _marks(content: Forest, names: alt.Axis | None) -> list[alt.Chart]:
    """Return the layers with the intervals and the means."""
    legend = alt.Legend(title=None, orient="top", values=[BETTER, UNCLEAR, WORSE], symbolSize=160, offset=26)
    domain = list(_SHAPES)
    colors = alt.Color("verdict:N", scale=alt.Scale(domain=domain, range="ordinal"), legend=legend)
    shapes = alt.Shape(
        "verdict:N", scale=alt.Scale(domain=domain, range=list(_SHAPES.values())), legend=legend
    )
    numbers = (alt.Tooltip(f"{name}:Q", format=".4f") for name in ("mean", "low", "high"))
    rows = from_data("models").encode(
        y=content.y(names), color=colors, tooltip=[alt.Tooltip("model:N"), *numbers, alt.Tooltip("verdict:N")]
    )
    drawn = rows.transform_filter(content.inside)
    bars = rows.transform_filter(f"isValid(datum.low) && {content.inside}").mark_rule(strokeWidth=3.5)
    means = drawn.mark_point(filled=True, size=170, opacity=1).encode(x=content.x, shape=shapes)
    ends = alt.X("low:Q", title=content.metric)
    return [bars.encode(x=ends, x2=alt.X2("high:Q")), means, *_arrows(content, rows)]


def _line(content: Forest, *, is_narrow: bool = False) -> list[alt.Chart]:
    """Return the dashed line of the reference, with its name; on a narrow page it spares all names."""
    if content.line is None:
        return []
    low, high = content.ends
    # Aligned at the line as the line is in the chart, the name stays inside it.
    share = (content.line - low) / (high - low)
    before = -round(share * LETTER * len(content.label))
    one = from_data("models").transform_filter(f"datum.verdict == '{REFERENCE}'").encode(x=content.x)
    name = one.mark_text(align="left", dx=before, fontSize=TEXT_SIZE, fontWeight="bold")
    dashes = from_data("models").mark_tick(orient="vertical", size=_DASH, thickness=2, yOffset=_DASH_OFFSET)
    return [
        dashes.encode(x=content.x_line, y=content.y(None))
        if is_narrow
        else one.mark_rule(strokeDash=[6, 4], strokeWidth=2),
        name.encode(text=alt.TextValue(content.label), y=alt.YValue(-12)),
    ]


def _arrows(content: Forest, rows: alt.Chart) -> list[alt.Chart]:
    """Return an arrow at the end of the axis for each bar and each mean beyond it."""
    low, high = content.ends
    found: list[alt.Chart] = []
    for end, beyond, shape, at in (
        ("low", f"< {low}", "triangle-left", 0),
        ("high", f"> {high}", "triangle-right", alt.ExprRef("width")),
    ):
        x = alt.XValue(at)
        align, inward = ("left", 12) if end == "low" else ("right", -12)
        bars = rows.transform_filter(f"isValid(datum.{end}) && datum.{end} {beyond} && {content.inside}")
        means = rows.transform_filter(f"datum.point {beyond}")
        number = means.mark_text(align=align, dx=inward, fontSize=_NARROW_TEXT)
        found += [
            bars.mark_point(shape=shape, filled=True, size=130, opacity=1).encode(x=x),
            means.mark_point(shape=shape, filled=False, size=150, strokeWidth=2, opacity=1).encode(x=x),
            number.encode(x=x, text=alt.Text("point:Q", format=".4f")),
        ]
    return found


def _column(content: Forest, y: alt.Y, field: str, form: str, at: int) -> list[alt.Chart]:
    """Return a column of numbers right of the bars, with its heading."""
    x = alt.XValue(alt.ExprRef(f"width + {at}"))
    rows = from_data("models")
    weight = "bold" if field == "point" else "normal"
    numbers = rows.transform_filter(f"isValid(datum.{field})")
    numbers = numbers.mark_text(align="right", fontSize=TEXT_SIZE, fontWeight=weight)
    first = rows.transform_filter(alt.FieldEqualPredicate(field="model", equal=content.models[0]))
    heading = first.mark_text(align="right", fontSize=TEXT_SIZE)
    return [
        numbers.encode(y=y, x=x, text=alt.Text(f"{field}:Q", format=form)),
        heading.encode(x=x, y=alt.YValue(-12), text=alt.TextValue(_HEADINGS[field])),
    ]


def _texts_above(content: Forest) -> list[alt.Chart]:
    """Return each model's name and numbers, above its bar."""
    rows = from_data("models").encode(y=content.y(None))
    room = alt.ExprRef("width - 110")
    numbers = "format(datum.point, '.4f') + (isValid(datum.gain) ? '  ' + format(datum.gain, '+.4f') : '')"
    texts = rows.transform_calculate(numbers=numbers)
    return [
        rows.mark_text(align="left", dy=-19, fontSize=_NARROW_TEXT, limit=room).encode(
            x=alt.XValue(0), text=alt.Text("model:N")
        ),
        texts.mark_text(align="right", dy=-19, fontSize=_NARROW_TEXT).encode(
            x=alt.XValue(alt.ExprRef("width")), text=alt.Text("numbers:N")
        ),
    ]
