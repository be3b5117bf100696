"""Sections of a config that share their settings with the classes that use them.

A setting is declared once, in the class that uses it. A section includes such classes: each of their fields
that is a plain value is a key of the section, with the same type, default and docstring. Fields that are
objects (a schedule, an optimizer) are not keys: the section has a name for them, from which `config.building`
creates them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from partita.errors import ConfigError

Kind = TypeVar("Kind")
_PLAIN = (bool, int, float, str, NoneType, list[str], Mapping[str, str], Mapping[str, Any])
_INCLUDED = "_included"


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def includes(*included: type, without: Collection[str] = ()) -> Callable[[type[Kind]], type[Kind]]:
    """Make a class a frozen dataclass that has the settings of other dataclasses besides its own fields.

    Args:
        included: the dataclasses.
        without: names of settings to leave out.

    >>> from partita.server.schedules import Linear
    >>> @includes(Linear)
    ... class Pace:
    ...     schedule: str = "linear"
    >>> Pace(warmup=0.5)
    Pace(schedule='linear', warmup=0.5)
    """

    def decorate(kind: type[Kind]) -> type[Kind]:
        settings = {name: own for owner in included for name, own in settings_of(owner).items()}
        taken = {name: own for name, own in settings.items() if name not in without}
        for name, (hint, default) in taken.items():
            kind.__annotations__[name] = hint
            setattr(kind, name, default)
        setattr(kind, _INCLUDED, included)
        return dataclass(frozen=True, kw_only=True)(kind)

    return decorate


def settings_of(kind: type) -> dict[str, tuple[Any, Any]]:
    """Return the type and the default of every field of a dataclass that is a plain value, by name.

    Those of the class itself come before inherited ones.

    >>> from partita.server.schedules import Linear
    >>> settings_of(Linear)
    {'warmup': (<class 'float'>, 0.1)}
    """
    hints = get_type_hints(kind)
    own = get_annotations(kind)
    plain = [entry for entry in fields(kind) if _is_plain(hints[entry.name])]
    plain.sort(key=lambda entry: entry.name not in own)
    return {entry.name: (hints[entry.name], entry.default) for entry in plain}


def included_in(kind: type) -> tuple[type, ...]:
    """Return the classes that a section includes."""
    return getattr(kind, _INCLUDED, ())


def create(kind: Callable[..., Kind], section: Any, **others: Any) -> Kind:
    """Create an object from the settings in a section and from other arguments."""
    assert isinstance(kind, type)
    given = {name: getattr(section, name) for name in settings_of(kind) if hasattr(section, name)}
    return kind(**(given | others))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type that a hint is.

    >>> alternatives(int | str), alternatives(int)
    ((<class 'int'>, <class 'str'>), (<class 'int'>,))
    """
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


@contextmanager
def in_section(name: str) -> Iterator[None]:
    """Turn a ValueError into a ConfigError that names the section of the config."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{name}] {error}") from None


def _is_plain(hint: Any) -> bool:
    """Return whether TOML has values of this type."""
    return all(kind in _PLAIN or get_origin(kind) is Literal for kind in alternatives(hint))
