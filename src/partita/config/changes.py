"""Changing a config's values by dotted keys, such as `personalize.rounds`."""

import copy
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from partita.errors import ConfigError, shortened

Values = Mapping[str, Any]
"""A config as TOML has it: values by key, one mapping per section."""
_MAX_DEPTH = 32
"""The maximum number of tables and lists inside each other; no setting needs more than 4."""


def read_toml(text: str, source: str) -> dict[str, Any]:
    """Return the values of a TOML text; `source` names it in messages.

    Raises:
        ConfigError: it is not TOML, or has a value that no setting can have, see `check_plain`.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"
        raise ConfigError(f"{source} cannot be read: {reason}.") from None
    check_plain(values)
    return values


def check_plain(values: Values) -> None:
    """Raise if values are nested very deeply, or a whole number does not fit in 64 bits."""
    left: list[tuple[str, Any, int]] = [(str(key), value, 1) for key, value in values.items()]
    while left:
        key, value, depth = left.pop()
        if depth > _MAX_DEPTH:
            raise ConfigError(f"`{key}` has more than {_MAX_DEPTH} lists or tables inside each other.")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"`{key}` must be a number of at most 64 bits, got {shortened(value)}.")
        if isinstance(value, Mapping):
            left += [(f"{key}.{name}" if depth < 4 else key, own, depth + 1) for name, own in value.items()]
        elif isinstance(value, list | tuple):
            left += [(key, own, depth + 1) for own in value]


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
            raise ConfigError(f"An override must be `section.key=value`, got {shortened(override, 200)}.")
        changes[key] = parse_value(text)
    check_plain(changes)
    return changes


def parse_value(text: str) -> Any:
    """Return a value typed on the command line: as TOML reads it, or else as a string."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (RecursionError, ValueError):
        raise ConfigError(f"A value is nested too deeply or too long, got {shortened(text)}.") from None
    return values["value"] if len(values) == 1 else text


def _path(key: str) -> list[str]:
    """Return the parts of a dotted key."""
    try:
        inner: Any = tomllib.loads(f"{key} = 0")
    except (tomllib.TOMLDecodeError, RecursionError):
        inner = {}
    path: list[str] = []
    while isinstance(inner, dict):
        if len(inner) != 1:
            raise ConfigError(f"A key must be like `section.key`, got {shortened(key)}.")
        ((name, inner),) = inner.items()
        path.append(name)
    if len(path) > _MAX_DEPTH:
        raise ConfigError(f"A key has at most {_MAX_DEPTH} parts, got {shortened(key)}.")
    return path
