"""The chart of models by cost: its axis by hand, and a name at the point of every model on the front."""

import json
import re
from typing import Any

import pytest
import vl_convert

from partita.report.charts.chart import Legend
from partita.report.charts.cost_axis import CostAxis
from partita.report.charts.tradeoffs import Tradeoff, tradeoff
from partita.report.figures import with_data


def point(model: str, cost: float, mean: float, *, front: bool = False) -> dict[str, Any]:
    return {"model": model, "megabytes": cost, "point": mean, "megabytes_front": front}


POINTS = [
    point("best", 830, 0.975, front=True),
    point("same", 830, 0.975, front=True),
    point("second", 832, 0.971),
    point("reference", 790, 0.948),
    point("gray", 834, 0.94),
    point("cheaper", 534, 0.968, front=True),
    point("alone", 40, 0.93, front=True),
]


def test_a_cost_far_below_the_others_is_beside_the_scale() -> None:
    axis = CostAxis([40, 500, 600, 900])

    # 40 is 12 times less than 500, and that is more than half of the logarithm of 900 / 40; of the others, 900
    # is less than 10 times 500: linear, from 0.12 to 1, and 700 in the middle.
    assert (axis.apart, axis.is_log) == ([40], False)
    assert [axis.place_of(cost) for cost in (40, 500, 700, 900)] == pytest.approx([0, 0.12, 0.56, 1])
    assert CostAxis([400, 500, 600, 900]).apart == []


def test_a_cost_of_zero_is_beside_a_logarithm_and_on_a_linear_scale() -> None:
    wide, narrow = CostAxis([0, 10, 100, 1000]), CostAxis([0, 10, 20])

    assert (wide.apart, wide.is_log) == ([0], True)
    assert [wide.place_of(cost) for cost in (0, 10, 100, 1000)] == pytest.approx([0, 0.12, 0.56, 1])
    assert (narrow.apart, narrow.is_log) == ([], False)
    assert [narrow.place_of(cost) for cost in (0, 10, 20)] == pytest.approx([0, 0.5, 1])
    assert CostAxis([5, 5]).place_of(5) == 0.5


def drawn(*, is_narrow: bool = False) -> str:
    content = Tradeoff(
        name="bytes",
        title="",
        caption="",
        cost="megabytes",
        points=POINTS,
        axes=("MB", "accuracy"),
        legend=Legend(models=["best", "second", "reference"], shown=["best", "second", "reference"]),
    )
    chart = tradeoff(content)
    spec = with_data(chart, {"models": POINTS})
    spec = {**chart.narrow, "datasets": spec["datasets"]} if is_narrow and chart.narrow else spec
    return vl_convert.vegalite_to_svg(json.dumps(spec), vl_version="6.4")


def test_every_model_on_the_front_and_every_one_in_color_is_named() -> None:
    names = set(re.findall(r">([a-z, ]+)</text>", drawn()))

    assert names == {"best, same", "second", "reference", "cheaper", "alone", "accuracy"}


def test_on_a_narrow_page_points_have_numbers_that_a_list_explains() -> None:
    svg = drawn(is_narrow=True)

    lists = re.findall(r">(\d)  ([a-z, ]+)</text>", svg)
    assert lists == [
        ("1", "best, same"),
        ("2", "cheaper"),
        ("3", "alone"),
        ("4", "second"),
        ("5", "reference"),
    ]
    assert all(svg.count(f">{number}</text>") == 1 for number, _ in lists)


def test_ticks_have_the_costs_and_models_are_at_their_places() -> None:
    svg = drawn()

    assert {"40", "600", "700", "800"} <= set(re.findall(r">(\d+)</text>", svg))
    assert svg.count('aria-roledescription="point"') == len(POINTS)
