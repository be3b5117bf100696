"""The cohort of a round: m of n devices, uniformly, without replacement."""

import random
from collections.abc import Sequence

from partita.protocol import Stage, derive_seed


def sample_cohort(devices: int, cohort: int, *, seed: int, stage: Stage, round: int) -> list[int]:
    """Return the positions of a round's cohort, in O(cohort): a function of seed, stage and round alone.

    >>> cohort = sample_cohort(1_000_000, 3, seed=1, stage=Stage.PERSONALIZED, round=0)
    >>> len(set(cohort))
    3
    """
    if not 1 <= cohort <= devices:
        raise ValueError(
            f"`devices_per_round` must be from 1 to the number of devices, {devices}, got {cohort}."
        )
    return random.Random(derive_seed(seed, stage, round, "cohort")).sample(range(devices), cohort)


def sample_spare(
    devices: int, cohort: Sequence[int], spare: int, *, seed: int, stage: Stage, round: int
) -> list[int]:
    """Return the positions of devices to ask besides a cohort; the cohort is the same with and without them.

    >>> cohort = sample_cohort(5, 3, seed=1, stage=Stage.PERSONALIZED, round=0)
    >>> spare = sample_spare(5, cohort, 2, seed=1, stage=Stage.PERSONALIZED, round=0)
    >>> sorted([*cohort, *spare])
    [0, 1, 2, 3, 4]
    """
    draw = random.Random(derive_seed(seed, stage, round, "spare"))
    found = draw.sample(range(devices - len(cohort)), spare)
    for taken in sorted(cohort):  # From positions among the other devices to those among all.
        found = [position + (position >= taken) for position in found]
    return found
