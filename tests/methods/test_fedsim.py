"""LocalSim against numbers worked by hand."""

from itertools import repeat

import pytest
import torch

from partita.methods.descent import Steps
from partita.methods.fedsim import LocalSim
from partita.partition import Partition
from small import Sum, half_square_error


def test_both_gradients_are_taken_at_the_same_point() -> None:
    # With y = 1, from u = v = 0, both gradients are -1: v <- 1/2 at rate 1/2, u <- 1/4 at rate 1/4.
    # A second step has gradient 3/4 - 1 = -1/4 for both: v <- 5/8, u <- 5/16.
    model = Sum()
    update = LocalSim(personal=Steps(count=2, lr=0.5), shared=Steps(count=2, lr=0.25))

    losses = update(model, Partition(model, personal="v"), repeat(torch.tensor(1.0)), half_square_error)

    assert model.v.item() == 0.625
    assert model.u.item() == 0.3125
    assert losses == [0.5, 0.03125]


def test_unequal_numbers_of_steps_are_an_error() -> None:
    with pytest.raises(ValueError, match="as many steps.*got 1 and 2"):
        LocalSim(personal=Steps(count=1, lr=0.5), shared=Steps(count=2, lr=0.5))
