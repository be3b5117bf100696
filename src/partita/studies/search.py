"""The values that a comparison's tuning tries for each method: what the method's file declares, resolved."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.config.changes import value_at
from partita.config.reading import to_values
from partita.config.schema import Config
from partita.methods import registry
from partita.methods.named import FINETUNE_RATE, PERSONAL_RATE

_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Learning rates are tried at these multiples of the config's."""


def space_of(config: Config, trials: int = 0) -> Mapping[str, Sequence[Any]]:
    """Return the values to try for one cell's config, by key.

    These are the learning rates and the further values that its method declares. Where they are too few for
    so many trials, learning rates are tried at more points of the same range.

    >>> list(space_of(Config()))
    ['personalize.shared_lr', 'personalize.personal_lr', 'finetune.personal_lr']
    """
    rates, search = dict(_rates(config)), registry.find(config.personalize.method).search
    others = {key: choices for key, choices in search.items() if _is_trained(config, key)}
    combinations, points = math.prod(map(len, others.values())), len(_FACTORS)
    while rates and points ** len(rates) * combinations < trials:
        points += 1
    return {**{key: _around(rate, points) for key, rate in rates.items()}, **others}


def _rates(config: Config) -> Iterator[tuple[str, float]]:
    """Yield the key and the config's value of each declared learning rate that training uses."""
    own, values = config.personalize, to_values(config)
    has_personal = config.partition.personal != "none"
    moves_personal = has_personal and (own.personal_epochs or own.personal_steps)
    used = {PERSONAL_RATE: moves_personal, FINETUNE_RATE: has_personal}
    for key in registry.find(own.method).rates:
        if used.get(key, True) and _is_trained(config, key):
            rate = value_at(values, key)
            # Only the personal rate may be missing: it is then the shared one.
            yield key, own.shared_lr if rate is None else rate


def _is_trained(config: Config, key: str) -> bool:
    """Return whether the key's stage has any rounds or epochs; True for a key outside the stages."""
    rounds = {"pretrain": config.pretrain.rounds, "personalize": config.personalize.rounds}
    return bool({**rounds, "finetune": config.finetune.epochs}.get(key.partition(".")[0], True))


def _around(rate: float, points: int) -> list[float]:
    """Return learning rates from a tenth of `rate` to ten times it.

    >>> _around(0.1, 5), _around(0.1, 3)
    ([0.01, 0.03, 0.1, 0.3, 1.0], [0.01, 0.1, 1.0])
    """
    evenly = [10 ** (2 * place / (points - 1) - 1) for place in range(points)]
    factors = _FACTORS if points == len(_FACTORS) else evenly
    return list(dict.fromkeys(float(f"{rate * factor:.6g}") for factor in factors))
