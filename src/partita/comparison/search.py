"""What each method is tuned over, where a comparison gives every method the same number of trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from partita.config.schema import Config

_AROUND = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Learning rates are tried at these multiples of the config's."""
_PULLS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""The paper's grid for lambda."""


def space_of(config: Config) -> Mapping[str, Sequence[Any]]:
    """Return the values to try for one cell's config: its learning rates, and its pull where it has one.

    >>> list(space_of(Config()))
    ['personalise.shared_lr', 'personalise.personal_lr', 'finetune.personal_lr']
    """
    space: dict[str, Sequence[Any]] = {}
    own, last = config.personalise, config.finetune
    if config.pretrain.rounds and config.personalise.method == "fedadam":
        space["pretrain.server_lr"] = _around(config.pretrain.server_lr)
    if own.rounds:
        space["personalise.shared_lr"] = _around(own.shared_lr)
        if own.personal_epochs or own.personal_steps:
            rate = own.shared_lr if own.personal_lr is None else own.personal_lr
            space["personalise.personal_lr"] = _around(rate)
        if own.proximal:
            space["personalise.proximal"] = _PULLS
    if config.partition.personal != "none" and last.epochs:
        space["finetune.personal_lr"] = _around(last.personal_lr)
    if config.partition.personal == "full" and config.partition.proximal:
        space["partition.proximal"] = _PULLS
    return space


def _around(rate: float) -> list[float]:
    return [float(f"{rate * factor:.6g}") for factor in _AROUND]
