"""The chart of all models: its finding and its axis, worked by hand."""

import json
import re

import pytest
import vl_convert

from partita.report.differences import Difference
from partita.report.figures import Datum, with_data
from partita.report.forest_section import Line, axis_ends, fences, forest_row, forest_section
from partita.tasks.metrics import Direction

LINE = Line(title="FedAvg", mean=0.5, direction="up")
BOUNDS = {"better": (0.1, 0.3), "unclear": (-0.1, 0.1), "worse": (-0.3, -0.1)}


def finding(*verdicts: str) -> str:
    rows = [forest_row("FedAvg", 0.5, None, LINE)]
    for place, verdict in enumerate(verdicts):
        low, high = BOUNDS[verdict]
        difference = Difference(value=(low + high) / 2, low=low, high=high, devices=4, seeds=1)
        rows.append(forest_row(f"{verdict} {place}", 0.5 + difference.value, difference, LINE))
    return forest_section(rows, LINE, "test accuracy", title="All models", direction="up").finding


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (
            ["better", "better", "worse", "unclear"],
            "4 other models: 2 clearly better and 1 clearly worse than FedAvg, 1 without a clear difference",
        ),
        (["worse", "unclear"], "2 other models: 1 clearly worse than FedAvg, 1 without a clear difference"),
        (["better", "better"], "Both other models are clearly better than FedAvg"),
        (["worse"], "The other model is clearly worse than FedAvg"),
        (["unclear", "unclear"], "No other model clearly differs from FedAvg"),
    ],
)
def test_the_finding_counts_the_models_that_differ_clearly(verdicts: list[str], text: str) -> None:
    assert finding(*verdicts) == text


def test_a_model_that_is_far_worse_is_beyond_the_axis_and_one_that_is_far_better_is_not() -> None:
    # The quartiles of -90, 10, 11, 12, 13, 30 are 10.25 and 12.75: the fences are 2.75 and 20.25.
    points = [-90.0, 10.0, 11.0, 12.0, 13.0, 30.0]

    assert fences(points) == (2.75, 20.25)
    # 10 to 30 is 20 of 120, less than a quarter; 11 to 30 would be 19 of 49.
    assert axis_ends(points, [], "up") == pytest.approx((10 - 0.8, 30 + 0.8))
    assert axis_ends([-19.0, *points[1:]], [], "up") == pytest.approx((-19 - 1.96, 30 + 1.96))
    assert axis_ends([-p for p in points], [], "down") == pytest.approx((-30 - 0.8, -10 + 0.8))
    # The reference is never beyond the axis.
    assert axis_ends(points, [], "up", kept=[-90.0]) == pytest.approx((-90 - 4.8, 30 + 4.8))


def test_a_bar_beyond_the_axis_is_explained_and_a_rounded_zero_has_no_minus() -> None:
    # The models are at 0.5 to 0.8: the bar from -0.9 to 1.9 is cut off.
    gains = {"a": -0.00001, "b": 0.1, "c": 0.2, "d": 0.3}
    wide = Difference(value=0.1, low=-1.4, high=1.4, devices=4, seeds=2)
    rows = [forest_row("FedAvg", 0.5, None, LINE), forest_row("wide", 0.6, wide, LINE)]
    for name, gain in gains.items():
        found = Difference(value=gain, low=gain - 0.1, high=gain + 0.1, devices=4, seeds=1)
        rows.append(forest_row(name, 0.5 + gain, found, LINE))

    svg, _, caption = drawn(rows, LINE, "up")

    assert caption.endswith("An arrow at the end of a bar means that it extends beyond the axis.")
    assert ">+0.0000<" in svg


def drawn(rows: list[Datum], line: Line | None, direction: Direction) -> tuple[str, str, str]:
    """The chart as it is drawn, the title of its axis and its caption."""
    chart = forest_section(rows, line, "test wer", title="All models", direction=direction).chart
    assert chart
    (axis,) = re.findall(r"test wer \(\w+ is better\)", json.dumps(chart.spec))[:1]
    spec = json.dumps(with_data(chart, {"models": rows}))
    return vl_convert.vegalite_to_svg(spec, vl_version="6.4"), axis, chart.caption


def test_an_error_without_a_result_of_the_reference_is_better_if_it_is_lower() -> None:
    means = {"a": 10.0, "b": 11.0, "c": 12.0, "d": 13.0, "e": 900.0}
    rows = [forest_row(model, mean, None, None) for model, mean in means.items()]

    svg, axis, caption = drawn(rows, None, "down")

    assert axis == "test wer (lower is better)"
    # The model that is far worse is an arrow at the right, with its number there and in its column.
    assert caption.endswith("A hollow arrow with a number is a model whose mean is beyond the axis.")
    assert svg.count(">900.0000<") == 2
    assert svg.count(">13.0000<") == 1
    names = re.findall(r">([a-e])<", svg)
    assert names == ["a", "b", "c", "d", "e"]


def test_a_model_on_fewer_devices_has_the_number_at_which_it_is_drawn() -> None:
    # It is 0.1 better on the devices that it has in common with the reference, which are the easy ones.
    line = Line(title="FedAvg", mean=0.5, direction="up")
    found = Difference(value=0.1, low=0.05, high=0.15, devices=2, seeds=1)
    rows = [forest_row("FedAvg", 0.5, None, line), forest_row("FedAlt", 0.9, found, line)]

    svg, _, caption = drawn(rows, line, "up")

    assert (svg.count(">0.6000<"), svg.count(">0.9000<")) == (1, 0)
    assert "the mean over all of their own): FedAlt (0.9000)." in caption


def test_of_many_models_an_interval_beyond_their_range_is_cut_off() -> None:
    points = [0.0, 1.0, 2.0, 3.0, 4.0]

    assert axis_ends(points, [-3.0, 7.0, 90.0], "up") == pytest.approx((-3 - 0.4, 7 + 0.4))
    assert axis_ends(points[:2], [-3.0, 90.0], "up") == pytest.approx((-3 - 3.72, 90 + 3.72))
