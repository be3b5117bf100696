"""Statistics of a method over seeds and devices: means with intervals, percentiles, quartiles, counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from partita.protocol import DeviceId
from partita.tasks.metrics import Direction

DeviceMetrics = Mapping[DeviceId, tuple[float, int]]
"""A metric and its weight, by device."""
Numbers = npt.NDArray[np.float64]
_COVERED = 0.95
"""The share of intervals that should contain the true mean."""
_EXPONENT = 1.5
"""The exponent of variances in the degrees of freedom. Satterthwaite's is 2, too narrow for three seeds."""


@dataclass(frozen=True)
class Estimate:
    """A mean over devices and seeds, with its standard error and its 95 % confidence interval.

    A single device with a single seed has neither.
    """

    value: float
    standard_error: float | None
    low: float | None
    high: float | None
    seeds: int
    """Number of seeds with a value."""


def worst_percentile(values: DeviceMetrics, direction: Direction) -> float:
    """Return the 10th percentile over devices without weights, the 90th if lower is better."""
    metrics = [metric for metric, _ in values.values()]
    return float(np.quantile(metrics, 0.1 if direction == "up" else 0.9))


def mean_of(values: DeviceMetrics) -> float:
    """Return the weighted mean over devices."""
    metrics, weights = zip(*values.values(), strict=True)
    return float(np.average(metrics, weights=weights))


def paired_difference(
    own: Sequence[DeviceMetrics], other: Sequence[DeviceMetrics], direction: Direction
) -> Estimate | None:
    """Return the mean difference of `own` from `other`, both given by seed, on the devices that both have.

    It is positive if `own` is better. Without a device in common, the result is None.
    """
    devices = sorted({device for one in own for device in one})
    gains, weights = np.zeros((2, len(own), len(devices)))
    sign = 1 if direction == "up" else -1
    for seed, (one, two) in enumerate(zip(own, other, strict=True)):
        for place, device in enumerate(devices):
            if device in one and device in two:
                gains[seed, place] = sign * (one[device][0] - two[device][0])
                weights[seed, place] = one[device][1]
    return estimate_mean(gains, weights) if weights.any() else None


def estimate_mean(values: Numbers, weights: Numbers) -> Estimate:
    """Return the weighted mean of values by seed (rows) and device (columns), with its confidence interval.

    A weight of 0 marks a device without a value. The interval is for the mean over all devices and seeds from
    the same distribution, where seeds and devices each have an effect of their own (two-way random effects).
    With one seed it is for other devices only, with one device for other seeds only. The formula and its
    simulated coverage are in docs/decisions/confidence-interval.md.
    """
    seeds, devices = weights.any(axis=1), weights.any(axis=0)
    values, weights = values[seeds][:, devices], weights[seeds][:, devices]
    shares = weights / weights.sum()
    mean = float((shares * values).sum())
    if values.size == 1:
        return Estimate(mean, None, None, None, seeds=len(values))
    variance, degrees = _variance_of_mean(values - mean, shares)
    error = float(np.sqrt(variance))
    half = error * float(stdtrit(degrees, (1 + _COVERED) / 2))
    return Estimate(mean, error, mean - half, mean + half, seeds=len(values))


def _variance_of_mean(centered: Numbers, shares: Numbers) -> tuple[float, float]:
    """Return the variance of the mean of values by seed and device, and its degrees of freedom."""
    by_seed, by_device = shares.sum(axis=1), shares.sum(axis=0)
    seed_effects = (shares * centered).sum(axis=1) / by_seed
    device_effects = (shares * centered).sum(axis=0) / by_device
    device_scale, device_degrees = _correction(by_device)
    seed_scale, seed_degrees = _correction(by_seed)
    of_devices = device_scale * float(((by_device * device_effects) ** 2).sum())
    of_seeds = seed_scale * float(((by_seed * seed_effects) ** 2).sum())
    rest = shares * (centered - seed_effects[:, None] - device_effects)
    of_rest = seed_scale * device_scale * float((rest**2).sum())
    # The rest is part of the variance of both: without an effect of seeds (or devices) it is all of theirs.
    if of_seeds <= of_rest:
        return of_devices, device_degrees
    if of_devices <= of_rest:
        return of_seeds, seed_degrees
    variance = of_devices + of_seeds - of_rest
    terms = of_devices**_EXPONENT / device_degrees + of_seeds**_EXPONENT / seed_degrees
    return variance, variance**_EXPONENT / terms


def _correction(shares: Numbers) -> tuple[float, float]:
    """Return the factor that makes the variance of a weighted mean unbiased, and its degrees of freedom.

    The variance of sum(p x) is estimated by sum(p^2 (x - mean)^2). For n equal shares p the factor is
    n / (n - 1). The degrees of freedom are n - 1, where n is Kish's effective number, 1 / sum(p^2).

    >>> _correction(np.full(4, 1 / 4))
    (1.3333333333333333, 3.0)
    """
    if len(shares) == 1:
        return 0.0, 1.0
    squares = float((shares**2).sum())
    expected = squares - 2 * float((shares**3).sum()) + squares**2
    return squares / expected, max(1.0, 1 / squares - 1)


@dataclass(frozen=True)
class DeviceCounts:
    """Number of devices with a better, a worse and the same metric as with another model."""

    helped: int
    hurt: int
    same: int


def count_helped(own: DeviceMetrics, other: DeviceMetrics, direction: Direction) -> DeviceCounts:
    """Return the number of devices that are helped, hurt and the same compared with `other`."""
    sign = 1 if direction == "up" else -1
    gains = [sign * (own[device][0] - other[device][0]) for device in own if device in other]
    return DeviceCounts(sum(g > 0 for g in gains), sum(g < 0 for g in gains), sum(g == 0 for g in gains))


@dataclass(frozen=True)
class DeviceShare:
    """A number of devices, out of those that could be counted."""

    count: int
    of: int


def count_better(own: DeviceMetrics, others: Sequence[DeviceMetrics], direction: Direction) -> DeviceShare:
    """Return the number of devices that are strictly better than under all others, of those in all."""
    sign = 1 if direction == "up" else -1
    gains = [
        min(sign * (metric - other[device][0]) for other in others)
        for device, (metric, _) in own.items()
        if all(device in other for other in others)
    ]
    return DeviceShare(sum(gain > 0 for gain in gains), len(gains))


def quartiles_of(sizes: Mapping[DeviceId, int]) -> list[set[DeviceId]]:
    """Return the devices of each quarter by size, the smallest first; none where there are no quarters.

    The rank of a device is the share of devices that are smaller, plus half of the share of those that have
    its size; the first quarter has the ranks below 1/4, and so on. So devices of the same size are in the
    same quarter, and another may be empty. Fewer than 4 devices, and devices that all have the same size,
    have no quarters.

    >>> [sorted(quarter) for quarter in quartiles_of({"a": 1, "b": 2, "c": 2, "d": 3, "e": 9})]
    [['a'], ['b', 'c'], ['d'], ['e']]
    """
    if len(sizes) < 4 or len(set(sizes.values())) == 1:
        return []
    ordered = np.sort(list(sizes.values()))
    quarters: list[set[DeviceId]] = [set() for _ in range(4)]
    for device, size in sizes.items():
        smaller, at_most = (int(np.searchsorted(ordered, size, side=side)) for side in ("left", "right"))
        quarters[2 * (smaller + at_most) // len(sizes)].add(device)
    return quarters
