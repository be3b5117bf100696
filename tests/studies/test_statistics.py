"""Statistics over devices and seeds, against numbers worked by hand and an independent NumPy computation."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partita.studies import statistics
from partita.studies.statistics import (
    DeviceCounts,
    DeviceMetrics,
    DeviceShare,
    Estimate,
    count_better,
    count_helped,
    estimate_mean,
    mean_of,
    quartiles_of,
    worst_percentile,
)


def paired_difference(own: list[DeviceMetrics], other: list[DeviceMetrics], direction: Any) -> Any:
    return statistics.paired_difference(own, other, direction)


def by_device(*metrics: float, weights: tuple[int, ...] | None = None) -> DeviceMetrics:
    return {
        f"d{n}": (metric, weight)
        for n, (metric, weight) in enumerate(zip(metrics, weights or (1,) * len(metrics), strict=True))
    }


def test_the_mean_over_devices_is_weighted() -> None:
    # (0.5 * 1 + 1.0 * 3) / 4
    assert mean_of(by_device(0.5, 1.0, weights=(1, 3))) == 0.875


def test_the_difference_is_the_weighted_mean_over_devices_and_seeds() -> None:
    own = [by_device(0.5, 0.75, weights=(1, 3)), by_device(0.25, 1.0, weights=(1, 3))]
    other = [by_device(0.25, 0.5, weights=(1, 3)), by_device(0.5, 0.5, weights=(1, 3))]

    # Gains 0.25, 0.25 and -0.25, 0.5: (0.25 + 0.75 - 0.25 + 1.5) / 8
    assert paired_difference(own, other, "up").value == 0.28125
    assert paired_difference(own, other, "down").value == -0.28125


def test_equal_gains_have_an_interval_of_no_width() -> None:
    own, other = [by_device(0.75, 0.5), by_device(1.0, 0.25)], [by_device(0.5, 0.25), by_device(0.75, 0.0)]

    assert paired_difference(own, other, "up") == Estimate(0.25, 0.0, 0.25, 0.25, seeds=len(own))


def probability_within(half: float, degrees: float) -> float:
    """The probability that Student's t is at most `half` away from 0, by integrating its density."""
    angle = np.linspace(0.0, np.arctan(half / np.sqrt(degrees)), 200_001)
    # With t = sqrt(degrees) tan(angle), the density is proportional to cos(angle)^(degrees - 1).
    density = np.cos(angle) ** (degrees - 1)
    scale = math.gamma((degrees + 1) / 2) / (math.gamma(degrees / 2) * math.sqrt(math.pi))
    middles = (density[1:] + density[:-1]) / 2
    return 2 * scale * float((middles * np.diff(angle)).sum())


def test_the_interval_of_devices_and_seeds_is_the_one_worked_by_hand() -> None:
    # Three seeds and four devices, each value 10 + seed effect + device effect + rest. The effects and the rest
    # add up to 0 over each row and column, so they are what an analysis of variance finds.
    seeds, devices = np.array([-3.0, 0.0, 3.0]), np.array([-3.0, -1.0, 1.0, 3.0])
    rest = np.outer([1.0, 0.0, -1.0], [1.0, -1.0, -1.0, 1.0])
    values = 10 + seeds[:, None] + devices + rest

    result: Any = estimate_mean(values, np.ones((3, 4)))

    # Seeds:   (9 + 0 + 9) / (3 * 2)        = 3
    # Devices: (9 + 1 + 1 + 9) / (4 * 3)    = 5 / 3
    # Rest:    8 / (12 * 2 * 3)             = 1 / 9
    # Variance: 3 + 5 / 3 - 1 / 9           = 41 / 9
    degrees = (41 / 9) ** 1.5 / (3**1.5 / 2 + (5 / 3) ** 1.5 / 3)
    assert result.value == pytest.approx(10)
    assert result.standard_error == pytest.approx(math.sqrt(41 / 9))
    assert result.value - result.low == pytest.approx(result.high - result.value)
    half = (result.high - result.value) / math.sqrt(41 / 9)
    assert probability_within(half, degrees) == pytest.approx(0.95, abs=1e-6)


def test_where_seeds_have_no_effect_the_interval_is_that_of_the_devices_means() -> None:
    values = np.array([[0.0, 3.0, 6.0], [2.0, 1.0, 6.0]])  # Both seeds have the mean 3.

    result: Any = estimate_mean(values, np.ones((2, 3)))

    # The means of the devices are 1, 2 and 6: variance (4 + 1 + 9) / 2, of the mean a third of it.
    assert result.standard_error == pytest.approx(math.sqrt(7 / 3))
    assert probability_within((result.high - 3) / math.sqrt(7 / 3), 2) == pytest.approx(0.95, abs=1e-6)


def test_two_devices_of_one_seed_have_the_interval_of_one_degree_of_freedom() -> None:
    # Gains 0 and 0.5: the standard error is 0.25, and the quantile tan(0.475 pi).
    half = 0.25 * math.tan(0.475 * math.pi)

    result = paired_difference([by_device(0.5, 1.0)], [by_device(0.5, 0.5)], "up")

    assert (result.value, result.standard_error) == (0.25, 0.25)
    assert (result.low, result.high) == pytest.approx((0.25 - half, 0.25 + half))


def test_one_device_of_one_seed_has_no_interval() -> None:
    assert paired_difference([by_device(0.75)], [by_device(0.5)], "up") == Estimate(
        0.25, None, None, None, seeds=1
    )


def test_one_device_of_several_seeds_has_the_interval_of_its_seeds() -> None:
    of_seeds = paired_difference([by_device(0.5), by_device(1.0)], [by_device(0.5), by_device(0.5)], "up")
    of_devices = paired_difference([by_device(0.5, 1.0)], [by_device(0.5, 0.5)], "up")

    assert of_seeds is not None
    assert of_devices is not None
    assert replace(of_seeds, seeds=1) == of_devices
    assert of_seeds.seeds == 2


def test_devices_without_both_metrics_are_left_out() -> None:
    own, other = by_device(0.5, 1.0, 0.75), by_device(0.25, 0.75)

    assert paired_difference([own], [other], "up") == Estimate(0.25, 0.0, 0.25, 0.25, seeds=1)
    assert paired_difference([{"a": (1.0, 1)}], [{"b": (1.0, 1)}], "up") is None


def test_the_variance_is_unbiased_for_unequal_weights() -> None:
    # Shares 1/2, 1/4, 1/4. For x of variance 1 the mean has variance 1/4 + 1/16 + 1/16 = 3/8. The sum of
    # p^2 (x - mean)^2 has the expectation 1/4 (1 - 1 + 3/8) + 2/16 (1 - 1/2 + 3/8) = 13/64.
    scale, degrees = statistics._correction(np.array([0.5, 0.25, 0.25]))

    assert scale == pytest.approx((3 / 8) / (13 / 64))
    assert degrees == pytest.approx(8 / 3 - 1)


def test_a_device_with_almost_all_of_the_weight_has_one_degree_of_freedom() -> None:
    result: Any = estimate_mean(np.array([[1.0, 2.0]]), np.array([[1e6, 1.0]]))

    # Unbiased where x1 and x2 have one variance: (p1^2 + p2^2) (x1 - x2)^2 / 2.
    assert result.standard_error == pytest.approx(math.sqrt(0.5), rel=1e-3)
    assert result.high - result.value == pytest.approx(
        result.standard_error * math.tan(0.475 * math.pi), rel=1e-3
    )


def test_a_device_may_have_a_metric_for_some_seeds_only() -> None:
    own = [{"a": (1.0, 1)}, {"a": (0.5, 1), "b": (0.5, 2)}]
    other = [{"a": (0.5, 1), "b": (0.0, 2)}, {"a": (0.5, 1), "b": (0.0, 2)}]

    # (0.5 * 1 + 0 * 1 + 0.5 * 2) / 4
    assert paired_difference(own, other, "up").value == 0.375


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("seed_effect", [0.0, 0.2, 1.0])
def test_the_interval_contains_the_true_mean_as_often_as_promised(seeds: int, seed_effect: float) -> None:
    draw, draws = np.random.default_rng(7), 1000
    weights = np.tile(draw.integers(1, 5, 83), (seeds, 1))
    weights[0, :5] = 0  # Five devices failed with the first seed.
    contained = 0
    for _ in range(draws):
        values = draw.normal(0, seed_effect, (seeds, 1)) + draw.normal(0, 1, 83)
        result: Any = estimate_mean(values + draw.normal(0, 0.5, (seeds, 83)), weights)
        contained += result.low <= 0 <= result.high

    # 92 to 98 % with three seeds, 93 to 97 % with more; two standard errors of a simulation with 1,000 draws.
    low, high = (0.92, 0.98) if seeds == 3 else (0.93, 0.97)
    assert low - 0.016 < contained / draws < high + 0.01


def test_helped_and_hurt_are_strict_and_follow_the_direction() -> None:
    own, other = by_device(0.5, 0.25, 0.75, 1.0), {**by_device(0.5, 0.5, 0.5), "else": (1.0, 1)}

    assert count_helped(own, other, "up") == DeviceCounts(helped=1, hurt=1, same=1)
    assert count_helped(by_device(0.0, 0.0, 0.75), other, "down") == DeviceCounts(helped=2, hurt=1, same=0)


def test_the_worst_percentile_depends_on_the_direction() -> None:
    values = by_device(*(n / 10 for n in range(11)))

    assert worst_percentile(values, "up") == pytest.approx(0.1)
    assert worst_percentile(values, "down") == pytest.approx(0.9)
    assert worst_percentile(by_device(0.5), "up") == 0.5


def test_a_device_counts_if_it_is_strictly_better_than_under_all_others() -> None:
    own = by_device(0.5, 0.5, 0.5, 0.5, 0.5)
    alone, together = by_device(0.4, 0.6, 0.5, 0.4), by_device(0.4, 0.4, 0.4, 0.6, 0.1)

    # d0 is better than under both; d1 and d3 are worse than under one; d2 is equal under one; d4 lacks one.
    assert count_better(own, [alone, together], "up") == DeviceShare(count=1, of=4)
    # With an error, d0 is worse than under both, and nobody is better than under both.
    assert count_better(own, [alone, together], "down") == DeviceShare(count=0, of=4)


def test_different_sizes_make_quarters_of_equally_many_devices() -> None:
    sizes = {"a": 40, "b": 10, "c": 30, "d": 20, "e": 50, "f": 60, "g": 80, "h": 70}

    assert quartiles_of(sizes) == [{"b", "d"}, {"a", "c"}, {"e", "f"}, {"g", "h"}]


def test_devices_of_the_same_size_are_in_the_same_quarter() -> None:
    # Sorted: 1, 5, 5, 5, 5, 9, with the ranks 1/12, (1 + 4/2) / 6 = 1/2 and 11/12.
    assert quartiles_of(dict(zip("abcdef", (5, 1, 5, 9, 5, 5), strict=True))) == [
        {"b"}, set(), {"a", "c", "e", "f"}, {"d"},
    ]  # fmt: skip


@pytest.mark.parametrize("sizes", [(), (1, 2, 3), (7, 7, 7, 7, 7)])
def test_few_devices_or_equal_ones_have_no_quarters(sizes: tuple[int, ...]) -> None:
    assert quartiles_of(dict(zip("abcde", sizes, strict=False))) == []
