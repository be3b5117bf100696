"""Schedules against the formulas of the design."""

import pytest

from partita.server.schedules import Exponential, Linear, constant


def test_linear_warms_up_and_decreases() -> None:
    # T = 10, W = 2: (t+1)/2 for t = 0, 1; then (10-t)/8.
    factors = [Linear(warmup=0.2)(t, 10) for t in range(10)]

    assert factors == [0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]


def test_linear_without_warmup_begins_at_the_full_rate() -> None:
    assert [Linear(warmup=0.0)(t, 4) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_short_stage_has_the_nearest_whole_number_of_warmup_rounds() -> None:
    assert [Linear(warmup=0.1)(t, 3) for t in range(3)] == [1.0, 2 / 3, 1 / 3]
    assert Linear(warmup=0.29)(0, 100) == 1 / 29


def test_exponential_halves() -> None:
    assert [Exponential(halve_every=500)(t, 2000) for t in (0, 499, 500, 1999)] == [1, 1, 0.5, 0.125]


def test_constant_is_constant() -> None:
    assert {constant(t, 5) for t in range(5)} == {1.0}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="`warmup` must be"):
        Linear(warmup=1.0)
    with pytest.raises(ValueError, match="`halve_every` must be"):
        Exponential(halve_every=0)
