"""Names beside points: clear of each other and of points, each at its own."""

import math
from itertools import combinations

import pytest

from partita.report.charts.labels import Label, Named, Surroundings, placed_labels, together


def chart(*points: tuple[float, float], lines: tuple[tuple[float, float], ...] = ()) -> Surroundings:
    return Surroundings(width=600, height=300, points=points, lines=lines)


def overlap(one: Label, other: Label) -> bool:
    (low, high), (other_low, other_high) = one.ends, other.ends
    return low < other_high and other_low < high and abs(one.middle - other.middle) < 14


def test_labels_of_close_points_are_apart_and_joined_to_their_points() -> None:
    points = [(590.0, 20.0 + 8 * at) for at in range(5)]
    named = [Named(name=f"model {at}", at=point, length=120) for at, point in enumerate(points)]

    labels = placed_labels(named, chart(*points))

    assert not any(overlap(one, other) for one, other in combinations(labels, 2))
    assert all(label.ends[0] >= 0 and label.ends[1] <= 600 for label in labels)
    for label in labels:
        own = math.dist(label.point, label.at)
        others = [math.dist(point, label.at) for point in points if point != label.point]
        assert label.has_line or own <= min(others)


def test_a_label_of_one_point_is_beside_it_and_not_on_a_line() -> None:
    one = Named(name="model", at=(300.0, 150.0), length=60)

    (alone,) = placed_labels([one], chart(one.at))
    (beside,) = placed_labels([one], chart(one.at, lines=((260.0, 150.0),)))

    # 12 pixels left of the point, where the line would strike it through; therefore right of it.
    assert (alone.at, alone.align, alone.has_line) == (pytest.approx((288, 150)), "right", False)
    assert (beside.at, beside.align) == (pytest.approx((312, 150)), "left")


def test_points_at_one_place_have_one_label() -> None:
    named = [
        Named(name=name, at=at) for name, at in {"a": (5.0, 5.0), "b": (90.0, 5.0), "c": (7.0, 6.0)}.items()
    ]

    assert [[one.name for one in group] for group in together(named)] == [["a", "c"], ["b"]]
