"""A row of the benchmark: its figure, whether the target is met, and the share of the limit."""

import pytest

from row import Goal, Row


@pytest.mark.parametrize(
    ("goal", "target", "figure", "met"),
    [
        ("faster", 1.5, 3 / 2, True),  # 3 s against our 2 s
        ("faster", 1.6, 3 / 2, False),
        ("slower", 0.7, 2 / 3, True),
        ("slower", 0.6, 2 / 3, False),
        ("within", 34.0, 100 / 3, True),  # 2 is a third below 3
        ("within", 33.0, 100 / 3, False),
        ("under", 2.0, 2.0, True),
        ("under", 1.9, 2.0, False),
    ],
)
def test_a_goal_says_which_number_the_target_bounds(
    goal: Goal, target: float, figure: float, met: bool
) -> None:
    row = Row(workload="", goal=goal, target=target, ours=2.0, other=3.0)

    assert row.figure == pytest.approx(figure)
    assert row.met is met


def test_a_figure_above_the_other_is_a_difference_too() -> None:
    row = Row(workload="", goal="within", target=10, ours=4.0, other=3.0)

    assert row.figure == pytest.approx(100 / 3)
    assert row.met is False


def test_the_share_of_the_limit_counts_the_cores_that_share_the_work() -> None:
    # 60 operations in 2 s, where two cores could do 2 x 50 a second: 30 of 100.
    row = Row(workload="", goal="under", target=2, ours=2.0, flops=60, cores=2)

    assert row.share(rate=50) == pytest.approx(30)
    assert Row(workload="", goal="under", target=2, ours=2.0).share(rate=50) is None


def test_a_skipped_row_has_no_figure_and_meets_nothing() -> None:
    row = Row(workload="", against="x", goal="faster", target=2, flops=60, skipped="no data")

    assert (row.figure, row.met, row.share(rate=50)) == (None, None, None)
    assert row.record(rate=50)["skipped"] == "no data"
