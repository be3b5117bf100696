"""Cohorts: uniform, without replacement, a function of seed, stage and round."""

from collections import Counter

import pytest

from partita import Stage
from partita.server.sampling import sample_cohort, sample_spare


def cohort(round: int, *, devices: int = 10, size: int = 3, seed: int = 1) -> list[int]:
    return sample_cohort(devices, size, seed=seed, stage=Stage.PERSONALIZED, round=round)


def test_no_device_is_sampled_twice_in_a_round() -> None:
    assert all(len(set(cohort(t))) == 3 for t in range(100))


def test_a_cohort_depends_on_seed_and_round_alone() -> None:
    assert cohort(5) == cohort(5)
    assert cohort(5) != cohort(6)
    assert cohort(5) != cohort(5, seed=2)


def test_every_device_is_equally_likely() -> None:
    # 4,000 rounds of 3 in 10: each device is expected 1,200 times, with a deviation of about 29.
    counts = Counter(device for t in range(4000) for device in cohort(t))

    assert all(abs(counts[device] - 1200) < 5 * 29 for device in range(10))


@pytest.mark.parametrize("size", [0, 11])
def test_a_cohort_that_cannot_be_drawn_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=f"from 1 to the number of devices, 10, got {size}"):
        cohort(0, size=size)


def spare(round: int, *, devices: int = 10, size: int = 3) -> list[int]:
    about = {"stage": Stage.PERSONALIZED, "round": round}
    return sample_spare(devices, cohort(round, devices=devices), size, seed=1, **about)


def test_further_devices_are_different_ones_and_equally_likely() -> None:
    # As for a cohort: 3 of the 10, in the 7 of them that the cohort leaves.
    for t in range(100):
        assert len({*cohort(t), *spare(t)}) == 6
    counts = Counter(device for t in range(4000) for device in spare(t))

    assert all(abs(counts[device] - 1200) < 5 * 29 for device in range(10))


def test_all_other_devices_can_be_further_ones() -> None:
    assert sorted([*cohort(0), *spare(0, size=7)]) == list(range(10))
