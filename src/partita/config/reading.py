"""Reading a config: TOML, then `key=value` on top, with every value checked for its type."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from partita.config.changes import check_plain, read_toml, with_values
from partita.config.methods import method_of, replaced_settings, with_settings
from partita.config.overrides import with_overrides
from partita.config.provenance import find_own_code
from partita.config.schema import SERVER, Config, PersonalizeConfig, PretrainConfig
from partita.config.sections import alternatives, in_section
from partita.errors import ConfigError, did_you_mean, near_file, raise_fault, shortened
from partita.methods.named import NamedMethod

logger = logging.getLogger(__name__)


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the config in a TOML file, with `section.key=value` on top.

    User code that it names is looked for beside it; settings that its method replaces are logged.
    """
    values = read_values(path, overrides)
    find_own_code(values, path.parent)
    warn_replaced(values)
    return config_of(values)


def warn_replaced(values: Mapping[str, Any]) -> None:
    """Log the settings of a config that its method replaces."""
    if replaced := replaced_settings(values):
        logger.warning(replaced)


def read_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values in a TOML file, with `section.key=value` on top, without defaults."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise_fault(error, path)
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"Cannot read the config `{path}`: {reason}.{near_file(path, [path.parent])}"
        ) from None
    values = with_overrides(read_toml(text, f"`{path}`"), overrides)
    values["name"] = values.get("name") or path.stem
    return values


def config_of(values: Mapping[str, Any]) -> Config:
    """Return the config with these values and the settings of its method."""
    check_plain(values)
    config = _read(Config, with_settings(values))
    method = method_of(values)
    if method is None:
        return config
    return replace(config, personalize=_with_hyperparameters(config.personalize, method))


def _with_hyperparameters(section: PersonalizeConfig, method: NamedMethod) -> PersonalizeConfig:
    """Return `[personalize]` with every hyperparameter of its method, each given value checked.

    Raises:
        ConfigError: a key is neither the section's nor the method's, or its value has another type.
    """
    keys = [entry.name for entry in fields(section) if entry.name != "options"]
    own = method.hyperparameters
    for name in own:
        if name in keys or name.startswith(SERVER):
            raise ConfigError(
                f"`personalize.method` = {section.method!r} has an argument `{name}`, which is a key of "
                "[personalize] already: rename the argument."
            )
    defaults = {name: entry.default for name, entry in own.items()}
    options = {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}
    for key, value in section.options.items():
        if key in own:
            hint = own[key].annotation
            is_typed = hint is not inspect.Parameter.empty
            options[key] = check_type(value, hint, f"personalize.{key}") if is_typed else value
        elif key.startswith(SERVER):
            options[key] = value
        else:
            raise unknown_key("personalize.", key, [*keys, *own])
    return replace(section, options=options)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a config in which some dotted keys have other values; None means the default."""
    return config_of(with_values(to_values(config), changes))


def _read(kind: type, values: Mapping[str, Any], section: str = "") -> Any:
    """Return a section of the config, or all of it, with every value checked for its type."""
    hints, prefix = get_type_hints(kind), f"{section}." if section else ""
    known = {entry.name: hints[entry.name] for entry in fields(kind) if entry.name != "options"}
    further = {name: value for name, value in values.items() if name not in known}
    for key in further:
        is_other = kind is PretrainConfig and not key.startswith(SERVER)
        if "options" not in hints or is_other:
            if homes := _elsewhere(kind, key):
                raise ConfigError(f"Unknown key `{prefix}{key}`.{homes}")
            raise unknown_key(prefix, key, list(known))
    given = {
        name: _value(value, known[name], prefix + name) for name, value in values.items() if name in known
    }
    with in_section(section):
        return kind(**given, **({"options": further} if further else {}))


def _value(value: Any, hint: Any, key: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise ConfigError(f"`{key}` must be a section, got {shortened(value, 200)}.")
        return _read(hint, value, key)
    return check_type(value, hint, key)


def check_type(value: Any, hint: Any, key: str) -> Any:
    """Return the value of a key if it has the right type, a whole number as a float where one is needed."""
    options = alternatives(hint)
    for option in options:
        if _fits(value, option):
            return float(value) if option is float else value
    kinds = " or ".join(_name_of(option) for option in options if option is not NoneType)
    raise ConfigError(f"`{key}` must be {kinds}, got {shortened(value, 200)}.")


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind == list[str]:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == Mapping[str, Any]:
        return isinstance(value, dict)
    if kind == Mapping[str, str]:
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    return isinstance(kind, type) and isinstance(value, kind)


def _name_of(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind == Mapping[str, str]:
        return "a table of strings"
    if kind == Mapping[str, Any]:
        return "a table"
    return names.get(kind, "a list of strings")


def unknown_key(prefix: str, key: str, known: Sequence[str], *, of: str = "") -> ConfigError:
    """Return the error about a key that a section, or the function `of` that it names, does not have."""
    hint, owner = did_you_mean(key, known, prefix), f" of {of}" if of else ""
    return ConfigError(f"Unknown key `{prefix}{key}`.{hint} Known keys{owner}: {', '.join(known)}.")


def _elsewhere(kind: type, key: str) -> str:
    """Return a question about the sections that have a key, empty if none has it."""
    sections = {name: hint for name, hint in get_type_hints(kind).items() if is_dataclass(hint)}
    homes = [f"`{name}.{key}`" for name, hint in sections.items() if key in get_type_hints(hint)]
    return f" Did you mean {' or '.join(homes)}?" if homes else ""


def to_values(config: Any) -> dict[str, Any]:
    """Return a config, or a section of it, as TOML values, without those that are None."""
    values: dict[str, Any] = {}
    for entry in fields(config):
        value = getattr(config, entry.name)
        if entry.name == "options":
            values |= value
        elif is_dataclass(value):
            values[entry.name] = to_values(value)
        elif value is not None:
            values[entry.name] = value
    return values
