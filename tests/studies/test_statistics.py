"""Statistics over devices and seeds, against numbers worked by hand and an independent NumPy computation."""

from typing import Any

import numpy as np
import pytest

from partita.studies import statistics
from partita.studies.statistics import (
    DeviceCounts,
    DeviceMetrics,
    PairedDifference,
    count_helped,
    mean_of,
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

    assert paired_difference(own, other, "up") == PairedDifference(0.25, 0.25, 0.25)


def test_two_devices_of_one_seed_give_an_interval_from_one_to_the_other() -> None:
    # Draws are the first twice (1/4), both (1/2) or the second twice (1/4): the quantiles are the ends.
    assert paired_difference([by_device(0.5, 1.0)], [by_device(0.5, 0.5)], "up") == PairedDifference(
        0.25, 0.0, 0.5
    )


def test_one_device_of_one_seed_has_no_interval() -> None:
    assert paired_difference([by_device(0.75)], [by_device(0.5)], "up") == PairedDifference(0.25, None, None)


def test_one_device_of_several_seeds_has_the_interval_of_its_seeds() -> None:
    result = paired_difference([by_device(0.5), by_device(1.0)], [by_device(0.5), by_device(0.5)], "up")

    assert result == PairedDifference(0.25, 0.0, 0.5)


def test_devices_without_both_metrics_are_left_out() -> None:
    own, other = by_device(0.5, 1.0, 0.75), by_device(0.25, 0.75)

    assert paired_difference([own], [other], "up") == PairedDifference(0.25, 0.25, 0.25)
    assert paired_difference([{"a": (1.0, 1)}], [{"b": (1.0, 1)}], "up") is None


def test_a_device_may_have_a_metric_for_some_seeds_only() -> None:
    own = [{"a": (1.0, 1)}, {"a": (0.5, 1), "b": (0.5, 2)}]
    other = [{"a": (0.5, 1), "b": (0.0, 2)}, {"a": (0.5, 1), "b": (0.0, 2)}]

    # (0.5 * 1 + 0 * 1 + 0.5 * 2) / 4
    assert paired_difference(own, other, "up").value == 0.375


def test_the_interval_equals_a_bootstrap_over_indices_of_devices_and_seeds() -> None:
    draw = np.random.default_rng(5)
    gains, weights = draw.normal(0.1, 1.0, (5, 40)), np.tile(draw.integers(1, 9, 40), (5, 1))
    gains += draw.normal(0, 0.3, (5, 1)) + draw.normal(0, 0.5, (1, 40))
    own = [{str(d): (float(gains[s, d]), int(weights[s, d])) for d in range(40)} for s in range(5)]
    other = [{str(d): (0.0, 1) for d in range(40)} for _ in range(5)]

    result = paired_difference(own, other, "up")

    means = []
    for _ in range(20_000):
        chosen = np.ix_(draw.integers(5, size=5), draw.integers(40, size=40))
        means.append(np.average(gains[chosen], weights=weights[chosen]))
    low, high = np.quantile(means, [0.025, 0.975])
    assert result.value == pytest.approx(np.average(gains, weights=weights))
    assert (result.low, result.high) == pytest.approx((low, high), abs=0.05 * (high - low))


def test_the_interval_is_deterministic() -> None:
    own, other = [by_device(*np.linspace(0, 1, 9))], [by_device(*[0.5] * 9)]

    assert paired_difference(own, other, "up") == paired_difference(own, other, "up")


def test_helped_and_hurt_are_strict_and_follow_the_direction() -> None:
    own, other = by_device(0.5, 0.25, 0.75, 1.0), {**by_device(0.5, 0.5, 0.5), "else": (1.0, 1)}

    assert count_helped(own, other, "up") == DeviceCounts(helped=1, hurt=1, same=1)
    assert count_helped(by_device(0.0, 0.0, 0.75), other, "down") == DeviceCounts(helped=2, hurt=1, same=0)


def test_the_worst_percentile_depends_on_the_direction() -> None:
    values = by_device(*(n / 10 for n in range(11)))

    assert worst_percentile(values, "up") == pytest.approx(0.1)
    assert worst_percentile(values, "down") == pytest.approx(0.9)
    assert worst_percentile(by_device(0.5), "up") == 0.5
