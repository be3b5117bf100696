"""Contestants of the benchmark do the same work, and take turns."""

import pytest

from contest import Side, interleave
from contestants.ours import parameters_after
from contestants.plain_loop import plain_round
from workload import Workload, agree


@pytest.mark.parametrize("workload", [Workload("linear", devices=3), Workload("cnn", steps=2, devices=2)])
def test_the_library_and_the_plain_loop_agree(workload: Workload) -> None:
    run, shared = plain_round(workload)
    run()
    run()

    ours, plain = workload.check(parameters_after(workload, 2)), workload.check(shared)

    assert plain[0] > 0
    assert agree(plain, ours)


def test_a_device_that_is_left_out_is_noticed() -> None:
    workload = Workload("linear", devices=50)
    (all_of_them, first), (but_one, second) = (
        plain_round(workload),
        plain_round(Workload("linear", devices=49)),
    )
    all_of_them()
    but_one()

    assert not agree(workload.check(first), workload.check(second))


def test_operations_are_those_of_the_passes() -> None:
    # A linear model has two products of 10 x 784 x 10 in a step: outputs, and gradients of weights.
    assert Workload("linear", steps=3, devices=2).flops() == 2 * 3 * 2 * (2 * 10 * 784 * 10)


@pytest.mark.slow
def test_contestants_take_turns() -> None:
    arguments = ["linear", "--devices=2"]
    sides = [Side("plain", "plain_loop", arguments), Side("ours", "ours", arguments)]

    replies = interleave(sides, repeats=2)

    assert {name: len(rest) for name, (_, *rest) in replies.items()} == {"plain": 2, "ours": 2}
    assert all(reply["seconds"] > 0 for _, *rest in replies.values() for reply in rest)
    assert agree(*(first["check"] for first, *_ in replies.values()))


@pytest.mark.slow
def test_a_contestant_that_ends_shows_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)'wrong' ended:.*KeyError: 'square'"):
        interleave([Side("wrong", "plain_loop", ["square"])], repeats=1)
