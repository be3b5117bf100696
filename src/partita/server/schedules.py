"""Learning rate schedules: a factor for round t (from 0) of T."""

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int, int], float]
"""Returns the factor of both learning rates, from the round t and the number of rounds T."""


def constant(round: int, rounds: int) -> float:
    """Leave the learning rates as they are."""
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Warm up to the full learning rate, then decrease linearly, to 0 after the last round.

    >>> [Linear(warmup=0.5)(t, 4) for t in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """

    warmup: float = 0.1
    """Fraction of rounds for the warmup of the linear schedule."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise ValueError(f"`warmup` must be a share of rounds, from 0 to below 1, got {self.warmup!r}.")

    def __call__(self, round: int, rounds: int) -> float:
        """Return (t+1)/W in the W rounds of warm-up, (T-t)/(T-W) after them."""
        warm = int(self.warmup * rounds + 0.5)
        return (round + 1) / warm if round < warm else (rounds - round) / (rounds - warm)


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Halve the learning rates every so many rounds.

    >>> [Exponential(halve_every=2)(t, 5) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    halve_every: int = 500
    """Rounds after which the exponential schedule halves learning rates."""

    def __post_init__(self) -> None:
        if self.halve_every < 1:
            raise ValueError(f"`halve_every` must be at least 1 round, got {self.halve_every}.")

    def __call__(self, round: int, rounds: int) -> float:
        """Return 1/2 to the power of the halvings so far."""
        return 0.5 ** (round // self.halve_every)
