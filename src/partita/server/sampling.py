"""The cohort of a round: m of n devices, uniformly, without replacement."""

import random

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
