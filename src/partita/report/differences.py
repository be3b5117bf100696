"""A paired difference between two models, and its verdict in words: better, worse, or no clear difference."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from partita.studies.statistics import DeviceMetrics, mean_of, paired_difference
from partita.tasks.metrics import Direction

MetricsBySeed = Mapping[int, DeviceMetrics]
"""The metrics of a model by seed, then by device."""
Changes = npt.NDArray[np.float64]
"""The change of each device, in no particular order; positive if better."""
BETTER, UNCLEAR, WORSE, UNKNOWN = "clearly better", "no clear difference", "clearly worse", "no interval"
"""The verdicts: whether the interval lies above zero, holds it, lies below it, or cannot be estimated."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mean paired difference with its 95 % confidence interval; positive if better."""

    value: float
    low: float | None
    high: float | None
    devices: int
    """Number of devices that it is over."""
    seeds: int

    @property
    def verdict(self) -> str:
        """The verdict about the difference."""
        if self.low is None or self.high is None:
            return UNKNOWN
        return BETTER if self.low > 0 else WORSE if self.high < 0 else UNCLEAR

    @property
    def interval(self) -> str:
        """The interval in words, with what it is over."""
        over = f"{counted(self.devices, 'device')} and {counted(self.seeds, 'seed')}"
        if self.low is None or self.high is None:
            return f"over {over}: no interval"
        return f"95 % interval {signed(self.low)} to {signed(self.high)}, paired over {over}"

    def compared_with(self, other: str) -> str:
        """Return the comparison with another model in words.

        >>> found = Difference(value=0.01, low=-0.02, high=0.04, devices=9, seeds=3)
        >>> print(found.compared_with("FedAvg"))  # doctest: +ELLIPSIS
        no clear difference from FedAvg (+0.0100, 95 % interval -0.0200 to +0.0400, ...)
        """
        if self._is_unclear:
            return f"no clear difference from {other} ({signed(self.value)}, {self.interval})"
        return f"{self._amount} than {other} ({self.interval})"

    def said_of(self, model: str) -> str:
        """Return the same of a model in words where the other one was named before.

        >>> found = Difference(value=-0.01, low=-0.02, high=-0.005, devices=9, seeds=3)
        >>> print(found.said_of("FedAlt"))  # doctest: +ELLIPSIS
        FedAlt is 0.0100 worse (95 % interval -0.0200 to -0.0050, ...)
        """
        if self._is_unclear:
            return f"no clear difference ({signed(self.value)}, {self.interval})"
        return f"{model} is {self._amount} ({self.interval})"

    @property
    def _is_unclear(self) -> bool:
        return self.verdict == UNCLEAR or not self.value

    @property
    def _amount(self) -> str:
        return f"{abs(self.value):.4f} {'better' if self.value >= 0 else 'worse'}"


def difference(own: MetricsBySeed, other: MetricsBySeed, direction: Direction) -> Difference | None:
    """Return the difference of one model from another, both by seed; None without a device in common."""
    seeds = [seed for seed in own if seed in other]
    found = (
        paired_difference([own[s] for s in seeds], [other[s] for s in seeds], direction) if seeds else None
    )
    if found is None:
        return None
    devices = {device for seed in seeds for device in own[seed] if device in other[seed]}
    return Difference(
        value=found.value, low=found.low, high=found.high, devices=len(devices), seeds=found.seeds
    )


def changes_between(own: MetricsBySeed, other: MetricsBySeed, direction: Direction) -> Changes:
    """Return the change of each device from one model to another, averaged over the seeds that both have.

    >>> changes_between({1: {"a": (0.5, 1), "b": (1.0, 1)}}, {1: {"a": (0.25, 1)}}, "up")
    array([0.25])
    """
    sign = 1 if direction == "up" else -1
    sums: dict[str, tuple[float, int]] = {}
    for seed in own.keys() & other.keys():
        for device, (metric, _) in own[seed].items():
            if device in other[seed]:
                total, count = sums.get(device, (0.0, 0))
                sums[device] = total + sign * (metric - other[seed][device][0]), count + 1
    return np.array([total / count for total, count in sums.values()])


def quantiles_text(changes: Mapping[str, Changes]) -> str:
    """Return the spread of changes over all devices in words, by model, with a space before it.

    >>> quantiles_text({"FedAlt": np.array([-0.1, 0.0, 0.1])})
    ' Over all devices, 10th percentile, median and 90th percentile: FedAlt -0.0800, 0.0000, +0.0800.'
    """
    spread = [
        f"{model} {', '.join(signed(float(value)) for value in np.quantile(own, [0.1, 0.5, 0.9]))}"
        for model, own in changes.items()
        if len(own)
    ]
    return f" Over all devices, 10th percentile, median and 90th percentile: {'; '.join(spread)}."


def mean_over_seeds(model: MetricsBySeed) -> float:
    """Return the mean over seeds of a model's weighted means over devices."""
    return statistics.fmean(map(mean_of, model.values()))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "device"), counted(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def signed(value: float) -> str:
    """Return a difference with its sign; one that is rounded to zero has none.

    >>> signed(0.01), signed(-0.00001)
    ('+0.0100', '0.0000')
    """
    return f"{value:+.4f}" if round(value, 4) else "0.0000"


def mean_text(value: float) -> str:
    """Return a mean of counts: with one decimal, an integer without.

    >>> mean_text(38.0), mean_text(1234.33)
    ('38', '1,234.3')
    """
    return f"{value:,.1f}".removesuffix(".0")
