"""Names beside points: clear of each other and of all points, with a line to a point that is far away."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from partita.report.charts.chart import TEXT_SIZE

Align = Literal["left", "right", "center"]
Place = tuple[float, float]
"""Pixels from the left and from the top."""
_SAME = 5
"""Points closer than so many pixels have one label."""
_POINT = 7
"""The radius of a point in pixels, with some room."""
_HALF = TEXT_SIZE / 2 + 2
"""Half of the height of a label in pixels, with some room."""
_NEAR = 13
"""A label closer to its point than so many pixels needs no line."""
_DISTANCES = (12, 26, 44, 66, 90, 120, 150)
"""Distances of a label from its point, in pixels, in the order in which they are tried."""
_FAR = 50
"""A label on a line is as bad as one so many pixels farther away."""
_ANGLES = (180, 0, -90, 90, -45, -135, 45, 135, -25, -155, 25, 155, -65, -115, 65, 115)
"""Directions of a label from its point, in degrees, clockwise from the right."""
_UP = 90
"""The angle of a label above its point, without its sign."""
_LINE_STEPS = 12
"""Points on a line where it is checked."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A point with its name, of so many pixels."""

    name: str
    at: Place
    length: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Label:
    """A name and its place."""

    name: str
    point: Place
    at: Place
    """Where the text begins, ends, or has its middle above or below it: the end of its line."""
    align: Align
    length: float

    @cached_property
    def middle(self) -> float:
        """The middle of the text, from the top."""
        above = {True: -_HALF, False: _HALF}[self.at[1] < self.point[1]]
        return self.at[1] + (above if self.align == "center" else 0.0)

    @cached_property
    def has_line(self) -> bool:
        """Whether the label is so far from its point that a line joins them."""
        return math.dist(self.point, self.at) > _NEAR

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Where the text begins and ends."""
        before = {"left": 0.0, "right": self.length, "center": self.length / 2}[self.align]
        return self.at[0] - before, self.at[0] - before + self.length

    def holds(self, place: Place, room: float = 0.0) -> bool:
        """Return whether a place is in the text, or closer to it than so many pixels."""
        low, high = self.ends
        return low - room < place[0] < high + room and abs(place[1] - self.middle) < _HALF + room

    @cached_property
    def line(self) -> list[Place]:
        """Places on the line to the point."""
        if not self.has_line:
            return []
        (x, y), (to_x, to_y) = self.point, self.at
        shares = [step / _LINE_STEPS for step in range(1, _LINE_STEPS)]
        return [(x + share * (to_x - x), y + share * (to_y - y)) for share in shares]

    def conflicts(self, placed: Iterable["Label"], chart: "Surroundings") -> float:
        """Return how bad the place is: beyond the chart, on labels or points, on lines, or far away."""
        (low, high), y = self.ends, self.middle
        outside = (low < 0) + (high > chart.width) + (y < _HALF) + (y > chart.height - _HALF)
        labels = sum(self._crosses(other) for other in placed)
        own = self.holds(self.point, _POINT / 2)
        others = [point for point in chart.points if math.dist(point, self.point) >= _SAME]
        points = own + sum(self.holds(at, _POINT / 2) or self._seems_of(at) for at in others)
        passed = sum(any(math.dist(at, point) < _POINT for at in self.line) for point in others)
        is_on_line = any(map(self.holds, chart.lines))
        far = round(math.dist(self.point, self.at)) / _FAR
        return 12 * outside + 4 * (labels + points) + 3 * passed + is_on_line + far

    def _seems_of(self, point: Place) -> bool:
        """Return whether the label is closer to another point than to its own."""
        return math.dist(point, self.at) < (_NEAR if self.has_line else math.dist(self.point, self.at))

    def _crosses(self, other: "Label") -> bool:
        (low, high), (other_low, other_high) = self.ends, other.ends
        is_over = (
            abs(self.middle - other.middle) < 2 * _HALF and low < other_high + 4 and other_low < high + 4
        )
        is_struck = any(map(self.holds, other.line)) or any(map(other.holds, self.line))
        return is_over or is_struck or _cross((self.point, self.at), (other.point, other.at))


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The chart that labels are put in."""

    width: float
    height: float
    points: Sequence[Place]
    """All points."""
    lines: Sequence[Place]
    """Places on its lines, a few pixels from one to the next."""


def placed_labels(named: Sequence[Named], chart: Surroundings) -> list[Label]:
    """Return a label for each name, the first names at the best places."""
    found: list[Label] = []
    for one in named:
        candidates = _candidates(one)
        found.append(min(candidates, key=lambda label: label.conflicts(found, chart)))
    return found


def _cross(one: tuple[Place, Place], other: tuple[Place, Place]) -> bool:
    """Return whether two lines cross.

    >>> _cross(((0, 0), (2, 2)), ((0, 2), (2, 0))), _cross(((0, 0), (2, 2)), ((3, 0), (3, 9)))
    (True, False)
    """

    def side(line: tuple[Place, Place], at: Place) -> float:
        (x, y), (to_x, to_y) = line
        return (to_x - x) * (at[1] - y) - (to_y - y) * (at[0] - x)

    apart = side(one, other[0]) * side(one, other[1]) < 0
    return apart and side(other, one[0]) * side(other, one[1]) < 0


def _candidates(one: Named) -> list[Label]:
    """Return places around a point, the closest first."""
    found: list[Label] = []
    for distance in _DISTANCES:
        for angle in _ANGLES:
            right, down = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            align: Align = "center" if abs(angle) == _UP else "left" if right > 0 else "right"
            at = one.at[0] + distance * right, one.at[1] + distance * down
            found.append(Label(name=one.name, point=one.at, at=at, align=align, length=one.length))
    return found


def together(named: Sequence[Named]) -> list[list[Named]]:
    """Return the named points in groups that are at one place, each with its first one."""
    groups: list[list[Named]] = []
    for one in named:
        near = [group for group in groups if math.dist(group[0].at, one.at) < _SAME]
        if near:
            near[0].append(one)
        else:
            groups.append([one])
    return groups


def joined(names: Sequence[str]) -> str:
    """Return names in one text, with the same end in parentheses once.

    >>> joined(["FedAlt (input)", "FedSim (input)"]), joined(["Ditto", "FedAlt (input)"])
    ('FedAlt, FedSim (input)', 'Ditto, FedAlt (input)')
    """
    heads, ends = zip(
        *((name.rpartition(" ("))[::2] if name.endswith(")") else (name, "") for name in names), strict=True
    )
    if len(set(ends)) == 1 and ends[0]:
        return f"{', '.join(heads)} ({ends[0]}"
    return ", ".join(names)
