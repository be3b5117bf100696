"""The checks of a task."""

import pytest

from partita import Metric
from small import affine_task, negative_error


def test_higher_is_better_for_a_plain_function() -> None:
    task = affine_task(metrics={"a": negative_error, "b": Metric(negative_error, "down")})

    assert [metric.direction for metric in task.metrics.values()] == ["up", "down"]
    assert task.headline == "a"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {}}, "at least one metric"),
        ({"metrics": {"loss": negative_error}}, "cannot be called 'loss'"),
        ({"devices": {}}, "at least one device"),
    ],
)
def test_an_invalid_task_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        affine_task(**changes)


def test_a_direction_is_up_or_down() -> None:
    with pytest.raises(ValueError, match="'up' or 'down', got 'sideways'"):
        Metric(negative_error, "sideways")  # pyright: ignore[reportArgumentType]
