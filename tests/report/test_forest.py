"""The chart of all models: its finding and its axis, worked by hand."""

import pytest

from partita.report.differences import Difference
from partita.report.forest import Line, axis_ends, fences, forest_row, forest_section

LINE = Line(title="FedAvg", mean=0.5, direction="up")
BOUNDS = {"better": (0.1, 0.3), "unclear": (-0.1, 0.1), "worse": (-0.3, -0.1)}


def finding(*verdicts: str) -> str:
    rows = [forest_row("FedAvg", 0.5, None, LINE)]
    for place, verdict in enumerate(verdicts):
        low, high = BOUNDS[verdict]
        difference = Difference(value=(low + high) / 2, low=low, high=high, devices=4, seeds=1)
        rows.append(forest_row(f"{verdict} {place}", 0.5 + difference.value, difference, LINE))
    return forest_section(rows, LINE, "test accuracy", title="All models").finding


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
    # The quartiles of 1, 10, 11, 12, 13, 30 are 10.25 and 12.75: the fences are 2.75 and 20.25.
    points = [1.0, 10.0, 11.0, 12.0, 13.0, 30.0]

    assert fences(points) == (2.75, 20.25)
    assert axis_ends(points, [], "up") == pytest.approx((10 - 0.8, 30 + 0.8))
    assert axis_ends(points, [], "down") == pytest.approx((1 - 0.48, 13 + 0.48))


def test_of_many_models_an_interval_beyond_their_range_is_cut_off() -> None:
    points = [0.0, 1.0, 2.0, 3.0, 4.0]

    assert axis_ends(points, [-3.0, 7.0, 90.0], "up") == pytest.approx((-3 - 0.4, 7 + 0.4))
    assert axis_ends(points[:2], [-3.0, 90.0], "up") == pytest.approx((-3 - 3.72, 90 + 3.72))
