"""The values that a search tries for each method, where a comparison gives all methods the same trials."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.config.changes import value_at
from partita.config.reading import to_values
from partita.config.schema import Config
from partita.methods import registry
from partita.methods.named import AROUND

_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Learning rates are tried at these multiples of the config's."""
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's grid for lambda, the strength of a proximal term."""


def space_of(config: Config, trials: int = 0) -> Mapping[str, Sequence[Any]]:
    """Return the values to try for one cell's config, by key.

    These are its learning rates, the strengths of its proximal terms, and whatever else its method declares.
    Where they are too few for so many trials, learning rates are tried at more points of the same range.

    >>> list(space_of(Config()))
    ['personalize.shared_lr', 'personalize.personal_lr', 'finetune.personal_lr']
    """
    rates = dict(_rates(config))
    others = {**dict.fromkeys(_proximal_terms(config), _STRENGTHS), **dict(_declared(config))}
    combinations, points = 1, len(_FACTORS)
    for values in others.values():
        combinations *= len(values)
    while rates and points ** len(rates) * combinations < trials:
        points += 1
    return {**{key: _around(rate, points) for key, rate in rates.items()}, **others}


def _rates(config: Config) -> Iterator[tuple[str, float]]:
    """Yield the key and the config's value of each learning rate that training uses."""
    own, last, values = config.personalize, config.finetune, to_values(config)
    for key, choices in registry.find(own.method).search.items():
        if choices is AROUND and _is_trained(config, key):
            yield key, value_at(values, key)
    if own.rounds:
        yield "personalize.shared_lr", own.shared_lr
        if config.partition.personal != "none" and (own.personal_epochs or own.personal_steps):
            yield "personalize.personal_lr", own.shared_lr if own.personal_lr is None else own.personal_lr
    if config.partition.personal != "none" and last.epochs:
        yield "finetune.personal_lr", last.personal_lr


def _proximal_terms(config: Config) -> Iterator[str]:
    """Yield the keys of the proximal terms that a config has."""
    if config.personalize.rounds and config.personalize.proximal:
        yield "personalize.proximal"
    if config.partition.personal == "full" and config.partition.proximal:
        yield "partition.proximal"


def _declared(config: Config) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the values that a config's method declares."""
    for key, choices in registry.find(config.personalize.method).search.items():
        if choices is not AROUND and _is_trained(config, key):
            yield key, choices


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
