"""What each method is tuned over, where a comparison gives every method the same number of trials."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partita.config.schema import Config

_AROUND = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Learning rates are tried at these multiples of the config's."""
_PULLS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's grid for lambda."""


def space_of(config: Config, trials: int = 0) -> Mapping[str, Sequence[Any]]:
    """Return the values to try for one cell's config: its learning rates, and its pull where it has one.

    Where these are too few for so many trials, learning rates are tried at more points of the same range.

    >>> list(space_of(Config()))
    ['personalize.shared_lr', 'personalize.personal_lr', 'finetune.personal_lr']
    """
    rates, pulls = dict(_rates(config)), list(_pulls(config))
    points = len(_AROUND)
    while rates and points ** len(rates) * len(_PULLS) ** len(pulls) < trials:
        points += 1
    return {
        **{key: _around(rate, points) for key, rate in rates.items()},
        **dict.fromkeys(pulls, _PULLS),
    }


def _rates(config: Config) -> Iterator[tuple[str, float]]:
    """Yield the learning rates that matter, with the config's values."""
    own, last = config.personalize, config.finetune
    if config.pretrain.rounds and own.method == "fedadam":
        yield "pretrain.server_lr", config.pretrain.server_lr
    if own.rounds:
        yield "personalize.shared_lr", own.shared_lr
        if config.partition.personal != "none" and (own.personal_epochs or own.personal_steps):
            yield "personalize.personal_lr", own.shared_lr if own.personal_lr is None else own.personal_lr
    if config.partition.personal != "none" and last.epochs:
        yield "finetune.personal_lr", last.personal_lr


def _pulls(config: Config) -> Iterator[str]:
    """Yield the pulls that a config has."""
    if config.personalize.rounds and config.personalize.proximal:
        yield "personalize.proximal"
    if config.partition.personal == "full" and config.partition.proximal:
        yield "partition.proximal"


def _around(rate: float, points: int) -> list[float]:
    """Return learning rates from a tenth of `rate` to ten times it.

    >>> _around(0.1, 5), _around(0.1, 3)
    ([0.01, 0.03, 0.1, 0.3, 1.0], [0.01, 0.1, 1.0])
    """
    evenly = [10 ** (2 * place / (points - 1) - 1) for place in range(points)]
    factors = _AROUND if points == len(_AROUND) else evenly
    return list(dict.fromkeys(float(f"{rate * factor:.6g}") for factor in factors))
