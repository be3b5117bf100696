"""A task's own checks, and the quickstart's."""

import itertools

import pytest

from partita import Metric
from partita.tasks.digits import FORMS, digits
from small import affine_task, negative_error


def test_a_bare_function_is_better_when_higher() -> None:
    task = affine_task(metrics={"a": negative_error, "b": Metric(negative_error, "down")})

    assert [metric.direction for metric in task.metrics.values()] == ["up", "down"]
    assert task.headline == "a"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {}}, "at least one metric"),
        ({"metrics": {"loss": negative_error}}, "cannot be called 'loss'"),
        ({"devices": {}}, "at least one device"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        affine_task(**changes)


def test_a_direction_is_up_or_down() -> None:
    with pytest.raises(ValueError, match="'up' or 'down', got 'sideways'"):
        Metric(negative_error, "sideways")  # pyright: ignore[reportArgumentType]


def test_digits_are_fourteen_forms_split_inside_each() -> None:
    task = digits()
    sizes = {
        device: [len(splits[name][1]) for name in ("train", "test")]
        for device, splits in task.devices.items()
    }

    assert len(sizes) == 14
    assert [sum(pair) for pair in sizes.values()] == [end - begin for begin, end in itertools.pairwise(FORMS)]
    assert sum(sum(pair) for pair in sizes.values()) == 1797
    assert all(test == round(0.3 * (train + test)) for train, test in sizes.values())


def test_digits_are_split_the_same_way_each_time() -> None:
    one, again = (digits().devices["form-03"]["test"][0] for _ in range(2))

    assert one.equal(again)
