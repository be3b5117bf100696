"""What a search is asked for: keys with several values each."""

from collections.abc import Mapping, Sequence
from typing import Any

from partita.config.changes import parse_value
from partita.errors import ConfigError

Search = Mapping[str, Sequence[Any]]
"""Values to try, by key."""
_FIXED = ("seed", "evaluate.", "task.validation", "out", "name", "compare.")
"""Keys that say how trials are judged, or where they are."""


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return plain overrides, and the values to search among of those that list several.

    >>> split_arguments(["seed=2", "finetune.personal_lr=0.1,0.01"])
    (['seed=2'], {'finetune.personal_lr': [0.1, 0.01]})
    """
    plain: list[str] = []
    search: dict[str, list[Any]] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        if "," in text and text[0] not in "[{\"'":
            search[key] = list(dict.fromkeys(parse_value(part) for part in text.split(",") if part))
        else:
            plain.append(argument)
    return plain, search


def check_search(search: Search, trials: int) -> None:
    """Raise where there is nothing that could be searched."""
    if not search:
        raise ConfigError("There is nothing to search for: give a key several values, `key=v1,v2`.")
    if trials < 0:
        raise ConfigError(f"`trials` must be 0 (every combination) or above, got {trials}.")
    for key, choices in search.items():
        if key.startswith(_FIXED):
            raise ConfigError(f"`{key}` cannot be searched for: trials would not be judged alike.")
        odd = [choice for choice in choices if not isinstance(choice, str | int | float)]
        if odd:
            raise ConfigError(f"`{key}` can be searched among numbers and texts, got {odd[0]!r}.")
