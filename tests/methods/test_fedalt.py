"""LocalAlt against numbers worked by hand."""

from itertools import repeat

import torch

from partita.methods.descent import Steps
from partita.methods.fedalt import LocalAlt
from partita.partition import Partition
from small import Sum, half_square_error


def test_shared_step_sees_the_new_personal_part() -> None:
    # With y = 1 and lr = 1/2, from u = v = 0:
    #   v <- 0 - 1/2 (0 + 0 - 1)   = 1/2
    #   u <- 0 - 1/2 (0 + 1/2 - 1) = 1/4    (a simultaneous step would give 1/2)
    model = Sum()
    update = LocalAlt(personal=Steps(count=1, lr=0.5), shared=Steps(count=1, lr=0.5))

    losses = update(model, Partition(model, personal="v"), repeat(torch.tensor(1.0)), half_square_error)

    assert model.v.item() == 0.5
    assert model.u.item() == 0.25
    assert losses == [0.5, 0.125]


def test_each_part_has_its_own_rate_and_number_of_steps() -> None:
    # With y = 1, two steps on v at 1/2 and one on u at 1/4, from u = v = 0:
    #   v <- 1/2, then 1/2 - 1/2 (1/2 - 1) = 3/4
    #   u <- 0 - 1/4 (3/4 - 1) = 1/16
    model = Sum()
    update = LocalAlt(personal=Steps(count=2, lr=0.5), shared=Steps(count=1, lr=0.25))

    update(model, Partition(model, personal="v"), repeat(torch.tensor(1.0)), half_square_error)

    assert model.v.item() == 0.75
    assert model.u.item() == 0.0625


def test_without_personal_steps_v_is_left_alone() -> None:
    model = Sum()
    update = LocalAlt(personal=Steps(count=0, lr=0.5), shared=Steps(count=1, lr=0.5))

    update(model, Partition(model, personal="v"), repeat(torch.tensor(1.0)), half_square_error)

    assert model.v.item() == 0.0
    assert model.u.item() == 0.5
