"""The settings that a config's method stands for.

The settings that a method fixes replace the config's; those that it suggests apply where the config has none.
So the `config.toml` of a run contains everything that the name of its method meant.
"""

from typing import Any

from partita.config.changes import Values, value_at, with_values
from partita.methods import registry
from partita.methods.named import NamedMethod


def method_of(values: Values) -> NamedMethod | None:
    """Return the method of a config, None if its name is not a string or a run's code is missing.

    The `config.toml` of a run contains all settings of its method, so it can be read without the method's
    code.

    Raises:
        ConfigError: there is no such method, or its code does not import.
    """
    if not isinstance(values.get("personalize", {}), dict):
        return None
    name = value_at(values, "personalize.method")
    if name is not None and not isinstance(name, str):
        return None
    find = registry.find_or_none if values.get("made_with") else registry.find
    return find(registry.DEFAULT if name is None else name)


def with_settings(values: Values) -> dict[str, Any]:
    """Return a config's values with the settings of its method."""
    method = method_of(values)
    if method is None:
        return dict(values)
    suggested = {key: value for key, value in method.suggested.items() if value_at(values, key) is None}
    return with_values(values, {**suggested, **method.settings})


def replaced_settings(values: Values) -> str:
    """Return a warning about the values that a config's method replaces, empty where it replaces none."""
    method = method_of(values)
    replaced = [
        f"`{key}` = {value!r} instead of {given!r}"
        for key, value in (method.settings if method else {}).items()
        if (given := value_at(values, key)) not in (None, value)
    ]
    if not replaced:
        return ""
    return f"The method `{value_at(values, 'personalize.method')}` sets {', '.join(replaced)}."
