"""Changing a config's values by dotted keys, such as `personalize.rounds`."""

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from partita.errors import ConfigError

Values = Mapping[str, Any]
"""A config as TOML has it: values by key, one mapping per section."""


def with_values(values: Values, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the values in which some dotted keys have other values.

    A value for a whole section replaces all of it, and None removes a key. As in TOML, a part of a key that
    contains dots is quoted.

    >>> with_values({"seed": 1, "finetune": {"epochs": 5}}, {"seed": None, "finetune.personal_lr": 0.1})
    {'finetune': {'epochs': 5, 'personal_lr': 0.1}}
    """
    # Each section on its own: two that are one object must not change together.
    changed = {key: copy.deepcopy(value) for key, value in values.items()}
    for key, value in changes.items():
        *sections, name = _path(key)
        home: Any = changed
        for section in sections:
            home = home.setdefault(section, {})
            if not isinstance(home, dict):
                raise ConfigError(f"`{section}` must be a section, got {home!r}.")
        if value is None:
            home.pop(name, None)
        else:
            home[name] = copy.deepcopy(value)
    return changed


def value_at(values: Values, key: str) -> Any:
    """Return the value of a dotted key, None if there is none.

    >>> value_at({"finetune": {"epochs": 5}}, "finetune.epochs")
    5
    """
    value: Any = values
    for part in _path(key):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def dotted(values: Values) -> dict[str, Any]:
    """Return nested values by dotted keys, the form in which `with_values` takes changes.

    >>> dotted({"partition": {"proximal": 0.01}, "compare": {"settings": {"my.method:Own": 1}}})
    {'partition.proximal': 0.01, 'compare.settings."my.method:Own"': 1}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        part = name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)
        if isinstance(value, Mapping):
            flat |= {f"{part}.{key}": inner for key, inner in dotted(value).items()}
        else:
            flat[part] = value
    return flat


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """Return `section.key=value` arguments as changes by dotted key.

    >>> parse_overrides(["seed=2", "personalize.method=fedalt"])
    {'seed': 2, 'personalize.method': 'fedalt'}
    """
    changes: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        try:
            _path(key)
        except ConfigError:
            equals = ""
        if not equals:
            raise ConfigError(f"An override must be `section.key=value`, got {override!r}.")
        changes[key] = parse_value(text)
    return changes


def parse_value(text: str) -> Any:
    """Return a value typed on the command line: as TOML reads it, or else as a string."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def _path(key: str) -> list[str]:
    """Return the parts of a dotted key."""
    try:
        inner: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        inner = {}
    path: list[str] = []
    while isinstance(inner, dict):
        if len(inner) != 1:
            raise ConfigError(f"A key must be like `section.key`, got {key!r}.")
        ((name, inner),) = inner.items()
        path.append(name)
    return path
