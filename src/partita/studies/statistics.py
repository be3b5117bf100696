"""Statistics of a method over seeds and devices: means, percentiles, paired differences, helped and hurt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId
from partita.tasks.metrics import Direction

DeviceMetrics = Mapping[DeviceId, tuple[float, int]]
"""A metric and its weight, by device."""
Numbers = npt.NDArray[np.float64]
_RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """A mean difference over devices and seeds, positive if better, with its 95 % confidence interval.

    A single device with a single seed has no interval.
    """

    value: float
    low: float | None
    high: float | None


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
) -> PairedDifference | None:
    """Return the mean difference of `own` from `other`, both given by seed, on the devices that both have.

    The interval is a bootstrap over seeds and devices, so it covers other devices and other seeds from the
    same distribution; with one seed, other devices. Without a device in common, the result is None.
    """
    devices = sorted({device for one in own for device in one})
    gains, weights = np.zeros((2, len(own), len(devices)))
    sign = 1 if direction == "up" else -1
    for seed, (one, two) in enumerate(zip(own, other, strict=True)):
        for place, device in enumerate(devices):
            if device in one and device in two:
                gains[seed, place] = sign * (one[device][0] - two[device][0])
                weights[seed, place] = one[device][1]
    if not weights.any():
        return None
    value = float((gains * weights).sum() / weights.sum())
    if np.count_nonzero(weights) == 1:
        return PairedDifference(value, None, None)
    low, high = np.quantile(_resampled(gains * weights, weights), [0.025, 0.975])
    return PairedDifference(value, float(low), float(high))


def _resampled(gains: Numbers, weights: Numbers) -> Numbers:
    """Return the weighted mean gain of each bootstrap sample of seeds and devices."""
    known = weights.any(axis=0)
    gains, weights = gains[:, known], weights[:, known]
    seeds, devices = gains.shape
    generator = np.random.default_rng(0)
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _RESAMPLES)
    totals, counted = np.zeros((2, _RESAMPLES))
    for draw in range(_RESAMPLES):  # One sample at a time: there may be a million devices.
        of_devices = generator.multinomial(devices, np.full(devices, 1 / devices))
        totals[draw] = of_seeds[draw] @ (gains @ of_devices)
        counted[draw] = of_seeds[draw] @ (weights @ of_devices)
    return totals[counted > 0] / counted[counted > 0]


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
