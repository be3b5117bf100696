"""What is said of a method over seeds and devices: mean and spread, paired intervals, helped and hurt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from partita.protocol import DeviceId

Values = Mapping[DeviceId, tuple[float, int]]
"""A metric and its weight, by device."""
Direction = Literal["up", "down"]
Numbers = npt.NDArray[np.float64]
_RESAMPLES = 2000


@dataclass(frozen=True)
class Paired:
    """A difference over devices and seeds, positive where it is better, with its 95 % interval.

    One device of one seed has no interval.
    """

    value: float
    low: float | None
    high: float | None


def worst_tenth(values: Values, direction: Direction) -> float:
    """Return the metric that nine devices of ten reach, each counted once."""
    metrics = [metric for metric, _ in values.values()]
    return float(np.quantile(metrics, 0.1 if direction == "up" else 0.9))


def mean_of(values: Values) -> float:
    """Return the mean over devices by weight."""
    metrics, weights = zip(*values.values(), strict=True)
    return float(np.average(metrics, weights=weights))


def paired(own: Sequence[Values], other: Sequence[Values], direction: Direction) -> Paired | None:
    """Return how much better `own` is than `other`, both by seed, on the devices that both have.

    The interval is of a bootstrap that draws seeds and devices anew, so it holds for other devices and
    other seeds of the same kind; with one seed, for other devices. None where they have no device in common.
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
        return Paired(value, None, None)
    low, high = np.quantile(_resampled(gains * weights, weights), [0.025, 0.975])
    return Paired(value, float(low), float(high))


def _resampled(gains: Numbers, weights: Numbers) -> Numbers:
    """Return the weighted mean gain of each draw of seeds and devices."""
    known = weights.any(axis=0)
    gains, weights = gains[:, known], weights[:, known]
    seeds, devices = gains.shape
    generator = np.random.default_rng(0)
    of_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), _RESAMPLES)
    totals, counted = np.zeros((2, _RESAMPLES))
    for draw in range(_RESAMPLES):  # One at a time: devices may be a million.
        of_devices = generator.multinomial(devices, np.full(devices, 1 / devices))
        totals[draw] = of_seeds[draw] @ (gains @ of_devices)
        counted[draw] = of_seeds[draw] @ (weights @ of_devices)
    return totals[counted > 0] / counted[counted > 0]


@dataclass(frozen=True)
class Moved:
    """How many devices are better, worse and the same than under another model."""

    helped: int
    hurt: int
    same: int


def moved(own: Values, other: Values, direction: Direction) -> Moved:
    """Return who was helped and hurt, strictly, against `other`."""
    sign = 1 if direction == "up" else -1
    gains = [sign * (own[device][0] - other[device][0]) for device in own if device in other]
    return Moved(sum(g > 0 for g in gains), sum(g < 0 for g in gains), sum(g == 0 for g in gains))
