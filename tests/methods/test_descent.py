"""The one local loop."""

from dataclasses import replace
from itertools import repeat

import pytest
import torch
from torch import nn

from partita.methods.descent import Diverged, Steps, descend
from partita.params import cloned
from partita.partition import Partition
from small import Normed, Sum, half_square_error, same_bits, square_error

ONE = torch.tensor(1.0)


def test_clipping_is_by_one_norm_over_all_moving_parameters() -> None:
    # Both gradients are -1, so their norm is sqrt(2); clipped to 1/2 each is -1 / (2 sqrt(2)).
    model = Sum()
    steps = Steps(count=1, lr=1.0, max_grad_norm=0.5)

    descend(
        {"personal": steps, "shared": steps},
        model,
        Partition(model, personal="v"),
        repeat(ONE),
        half_square_error,
    )

    assert model.u.item() == model.v.item() == pytest.approx(0.5 / 2**0.5, rel=1e-5)


def test_fixed_parameters_do_not_count_in_the_norm() -> None:
    # Only v moves: its gradient of -1 is clipped to -1/2, whatever gradient u would have had.
    model = Sum()
    model.u.grad = torch.tensor(100.0)

    moves = {"personal": Steps(count=1, lr=1.0, max_grad_norm=0.5)}
    descend(moves, model, Partition(model, personal="v"), repeat(ONE), half_square_error)

    assert model.v.item() == pytest.approx(0.5, rel=1e-5)
    assert model.u.item() == 0.0


def test_an_optimizer_of_torch_can_take_the_steps() -> None:
    # Adam's first step has the length of its rate, whatever the gradient.
    model = Sum()
    moves = {"personal": Steps(count=1, lr=0.125, optimizer=torch.optim.Adam)}

    descend(moves, model, Partition(model, personal="v"), repeat(ONE), half_square_error)

    assert model.v.item() == pytest.approx(0.125, rel=1e-4)


@pytest.mark.parametrize(
    ("personal", "words"),
    [
        ({"count": 2}, "the same `count`, got 2 for the personal part and 1 for the shared part."),
        ({"max_grad_norm": 0.5}, "the same `max_grad_norm`, got 0.5 for the personal part and 0.0"),
        ({"optimizer": torch.optim.Adam}, "the same `optimizer`, got <class 'torch.optim.adam.Adam'>"),
    ],
)
def test_parts_that_move_together_differ_in_their_learning_rate_alone(personal: dict, words: str) -> None:
    model = Sum()
    shared = Steps(count=1, lr=0.25)
    moves = {"personal": replace(shared, lr=0.5, **personal), "shared": shared}

    with pytest.raises(ValueError, match=words):
        descend(moves, model, Partition(model, personal="v"), repeat(ONE), half_square_error)

    assert (model.u.item(), model.v.item()) == (0.0, 0.0)


def test_no_part_to_move_is_an_error() -> None:
    model = Sum()

    with pytest.raises(ValueError, match="at least one part"):
        descend({}, model, Partition(model, personal="v"), repeat(ONE), half_square_error)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_before_the_step(value: float) -> None:
    model = Sum()

    with pytest.raises(Diverged, match=f"became {value} in step 1"):
        descend(
            {"personal": Steps(count=3, lr=1.0)},
            model,
            Partition(model, personal="v"),
            repeat(torch.tensor(value)),
            half_square_error,
        )

    assert model.v.item() == 0.0


def test_a_part_of_buffers_alone_still_sees_the_data() -> None:
    model = Normed()
    partition = Partition(model, personal=["*.running_*", "*.num_batches_tracked"])
    weights = cloned(partition.of(model).shared)
    batch = torch.randn(8, 3), torch.randn(8)

    descend({"personal": Steps(count=2, lr=0.1)}, model, partition, repeat(batch), square_error)

    assert model.body[1].num_batches_tracked.item() == 2
    assert same_bits(weights, partition.of(model).shared)


def test_a_part_without_influence_on_the_loss_does_not_move() -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1))
    partition = Partition(model, personal="1.*")
    before = cloned(partition.of(model).personal)
    batch = torch.randn(4, 3), torch.randn(4)

    descend(
        {"personal": Steps(count=1, lr=0.1)},
        model,
        partition,
        repeat(batch),
        lambda net, data: (net[0](data[0]).squeeze(1) - data[1]).square().mean(),
    )

    assert same_bits(before, partition.of(model).personal)
