"""The axis of a cost: to scale where models differ, with places beside it for costs far lower than those."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import altair as alt

_DECADE = 10
"""Costs whose largest is so many times the smallest have a logarithmic axis."""
_FEW_POWERS = 1000
"""An axis whose highest value is less than so many times its lowest has ticks between powers of ten."""
_APART = 4
"""A cost below all others by more than this factor, and by half of the axis, has a place of its own."""
_ENOUGH = 3
"""Fewer costs have none that is far lower."""
_SLOT = 0.12
"""The share of the axis of such a place."""
_MARGIN = 0.04
"""The share of the axis that is added at both of its ends."""
_TICKS = 6
"""The number of ticks on a linear axis, nearly."""
_UNITS = {1e9: "G", 1e6: "M", 1e3: "k"}


@dataclass(frozen=True)
class CostAxis:
    """Places of costs as shares of the axis, from 0 to 1."""

    costs: Sequence[float]

    @cached_property
    def apart(self) -> list[float]:
        """Costs that are not to scale, with places of their own: a far lower one, 0 beside a logarithm."""
        positive = sorted({cost for cost in self.costs if cost > 0})
        far: list[float] = []
        if len(positive) >= _ENOUGH:
            lowest, second, *_, highest = positive
            if second > _APART * lowest and second**2 > lowest * highest:
                far = [lowest]
        main = [cost for cost in positive if cost not in far]
        has_zero = 0 in self.costs and bool(main) and (bool(far) or max(main) >= _DECADE * min(main))
        return [*([0.0] if has_zero else []), *far]

    @cached_property
    def _main(self) -> tuple[float, float]:
        """The lowest and the highest cost that are to scale."""
        main = [cost for cost in self.costs if cost not in self.apart]
        return min(main), max(main)

    @property
    def is_log(self) -> bool:
        """Whether the axis is logarithmic."""
        low, high = self._main
        return low > 0 and high >= _DECADE * low

    @property
    def break_at(self) -> float:
        """The place between the costs that are not to scale and the others."""
        return _SLOT * (len(self.apart) - 0.5)

    def place_of(self, cost: float) -> float:
        """Return the place of a cost.

        >>> [round(CostAxis([40, 500, 600, 900]).place_of(cost), 2) for cost in (40, 500, 700, 900)]
        [0.0, 0.12, 0.56, 1.0]
        """
        if cost in self.apart:
            return _SLOT * self.apart.index(cost)
        start, factor = self._line
        return start + factor * self._measured(cost)

    def place_expression(self, column: str) -> str:
        """Return the expression for the place of a model's cost."""
        start, factor = self._line
        cost = f"datum.{column}"
        place = f"{start} + {factor} * {f'log({cost})' if self.is_log else cost}"
        # The page rounds numbers.
        for own in reversed(self.apart):
            place = f"{cost} <= {own * 1.001} ? {self.place_of(own)} : {place}"
        return place

    @cached_property
    def _line(self) -> tuple[float, float]:
        """The intercept and the slope of places by measured costs, of those that are to scale."""
        low, high = (self._measured(cost) for cost in self._main)
        first = _SLOT * len(self.apart)
        if low == high:
            return (first + 1) / 2, 0.0
        slope = (1 - first) / (high - low)
        return first - slope * low, slope

    def _measured(self, cost: float) -> float:
        return math.log(cost) if self.is_log else cost

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis."""
        return -_MARGIN, 1 + _MARGIN

    def encoding(self, title: str) -> alt.X:
        """Return the encoding of the column `place`."""
        low, high = self._main
        inner = [low] if low == high else _powers(low, high) if self.is_log else _steps(low, high)
        ticks = [*self.apart, *inner]
        places, labels = [self.place_of(tick) for tick in ticks], [short(tick) for tick in ticks]
        axis = alt.Axis(
            values=places, labelExpr=f"{labels}[indexof({places}, datum.value)]", labelOverlap=True
        )
        scale = alt.Scale(domain=list(self.ends), nice=False, zero=False)
        return alt.X("place:Q", title=title, scale=scale, axis=axis)


def short(value: float) -> str:
    """Return a number with three digits and its unit.

    >>> short(40.727), short(308538), short(0), short(1000)
    ('40.7', '309k', '0', '1k')
    """
    for unit, letter in _UNITS.items():
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def _powers(low: float, high: float) -> list[float]:
    """Return the powers of ten between two costs; with few of them, also twice and five times each.

    >>> _powers(60, 1200), _powers(100, 1e6)
    ([100, 200, 500, 1000], [100, 1000, 10000, 100000, 1000000])
    """
    steps = (1, 2, 5) if high < _FEW_POWERS * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for step in steps if low <= (tick := step * 10**power) <= high]


def _steps(low: float, high: float) -> list[float]:
    """Return round numbers between two costs at equal distances.

    >>> _steps(494, 830)
    [500, 550, 600, 650, 700, 750, 800]
    """
    rough = (high - low) / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = min((s * power for s in (1, 2, 5, 10)), key=lambda each: abs(math.log(each / rough)))
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
