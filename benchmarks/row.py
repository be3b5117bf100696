"""One row of the benchmark: what was timed, against what, and whether the target is met.

Each module that measures has a function `rows() -> Iterator[Row]`; `benchmarks/run.py` collects them. A row
that cannot be measured on a machine is yielded all the same, with the reason in `skipped`.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Goal = Literal["faster", "slower", "within", "under"]
"""`faster`: at least `target` times faster than the other; `slower`: at most `target` times the other's time;
`within`: differs from the other by at most `target` percent; `under`: at most `target`, in the row's unit."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A workload, our figure and the other's, and the target for the two."""

    workload: str
    """The work, the same for both: "50 devices x 1 batch of 10, linear, 1 process"."""
    against: str = ""
    """The other side: "pfl 0.6.0", "plain loop", "reuse=false"; nothing with the goal `under`."""
    goal: Goal
    target: float
    ours: float | None = None
    """Our figure, the minimum of several repeats; None if the row was skipped."""
    other: float | None = None
    """The other's figure; None if the row was skipped, and with the goal `under`."""
    unit: str = "s"
    """The unit of both figures: s, bytes a device, MB."""
    flops: float | None = None
    """Floating-point operations that `ours` seconds cannot do without, frozen work counted once; None where
    the row is not about arithmetic."""
    cores: int = 1
    """Cores that share these operations."""
    skipped: str = ""
    """Why there are no figures."""

    @property
    def figure(self) -> float | None:
        """The number that the target is about: a ratio, a difference in percent, or our figure."""
        if self.ours is None or (self.other is None and self.goal != "under"):
            return None
        match self.goal, self.other:
            case "faster", float() | int() as other:
                return other / self.ours
            case "slower", float() | int() as other:
                return self.ours / other
            case "within", float() | int() as other:
                return 100 * abs(self.ours / other - 1)
            case _:
                return self.ours

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if the row was skipped."""
        if self.figure is None or math.isnan(self.figure):
            return None
        return self.figure >= self.target if self.goal == "faster" else self.figure <= self.target

    def __str__(self) -> str:
        """Return the row as a line, for modules that are run alone."""
        if self.ours is None:
            return f"{self.workload}: skipped, {self.skipped}"
        other = "" if self.other is None else f", {self.against or 'the other'} {self.other:.4g} {self.unit}"
        met = "met" if self.met else "missed"
        return f"{self.workload}: {self.ours:.4g} {self.unit}{other} ({self.goal} {self.target:g}: {met})"

    def share(self, rate: float) -> float | None:
        """Return our speed in percent of the limit: the necessary operations at `rate` FLOP/s per core."""
        if self.flops is None or self.ours is None:
            return None
        return 100 * self.flops / (rate * self.cores * self.ours)

    def record(self, rate: float) -> dict[str, Any]:
        """Return the row and all that follows from it, for JSON."""
        return {**asdict(self), "figure": self.figure, "met": self.met, "share": self.share(rate)}
