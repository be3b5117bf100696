"""Every method that a config can name: the modules of this package and the entry points of others.

Names are listed without an import, so that `partita --help` and `partita config` do not wait for torch; a
method's module is imported when the method is first used.
"""

import logging
import pkgutil
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from partita.errors import ConfigError, did_you_mean
from partita.methods.named import Citation, NamedMethod

logger = logging.getLogger(__name__)

DEFAULT = "fedalt"
"""The method of a config that names none; its paper is the one to cite for this package."""
REFERENCE = "fedavg"
"""The method without a personal part, for pretraining and for a comparison's additional rounds."""
BASELINE = "finetune"
"""Fine-tuning of the whole pretrained model on each device: the paper's baseline."""
PARTIAL_BASELINE = "ft_part"
"""Fine-tuning of the personal part alone."""
GROUP = "partita.methods"
"""The group of entry points by which another package adds methods: name = "package.module:METHOD"."""
_NO_METHODS = frozenset({"carried", "declared", "descent", "method", "named", "own_model", "registry", "sgd"})
"""The modules of this package that are not methods."""


def names() -> list[str]:
    """Return the names of all methods, sorted; imports none of them.

    Raises:
        ConfigError: another package registers a name twice, or one that is built in.
    """
    built_in = _built_in()
    added = _entry_points()
    for name, points in added.items():
        if name in built_in or len(points) > 1:
            values = " and ".join(repr(point.value) for point in points)
            owner = "is built in" if name in built_in else "is registered twice"
            raise ConfigError(
                f"The method name `{name}` {owner}: rename the entry point {values} of `{GROUP}`."
            )
    return sorted([*built_in, *added])


def find(name: str, key: str = "personalize.method") -> NamedMethod:
    """Return a method by its name, or by an import path to a `NamedMethod` or to a bare update.

    Args:
        name: the name or the import path.
        key: the key of the config that has it, for messages.

    Raises:
        ConfigError: there is no such method, or its module does not import.
    """
    known = names()
    if name in known:
        return _load(name)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"`{key}` must be one of {', '.join(known)} or an import path such as "
            f"'package.module:METHOD', got {name!r}.{did_you_mean(name, known)}"
        )
    try:
        return _as_method(getattr(import_module(module), attribute), title=attribute)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"`{key}` = {name!r} does not import: {type(error).__name__}: {reason}.") from error


def every() -> dict[str, NamedMethod]:
    """Return all methods by name, in the order of tables.

    An entry point that does not load is left out, with a warning that names it.
    """
    found: dict[str, NamedMethod] = {}
    for name in names():
        try:
            found[name] = _load(name)
        except ConfigError as error:
            logger.warning(error)
    return dict(sorted(found.items(), key=lambda entry: (entry[1].order, entry[0])))


def citations() -> dict[str, Citation]:
    """Return the papers of all methods, by key."""
    papers = [method.citation for method in every().values()]
    return {paper.key: paper for paper in papers if paper is not None}


def path_of(name: str) -> str:
    """Return the import path of a method of another package; any other name as it is."""
    points = _entry_points().get(name)
    return points[0].value if points else name


def find_or_none(name: str) -> NamedMethod | None:
    """Return a method of a recorded run, None where its code is missing."""
    try:
        return find(name)
    except ConfigError:
        return None


@cache
def _built_in() -> set[str]:
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return modules - _NO_METHODS


@cache
def _entry_points() -> dict[str, list[metadata.EntryPoint]]:
    """Return the entry points of other packages, by name."""
    added: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        added.setdefault(point.name, []).append(point)
    return added


@cache
def _load(name: str) -> NamedMethod:
    if name in _built_in():
        return import_module(f"{__package__}.{name}").METHOD
    (point,) = _entry_points()[name]
    try:
        return _as_method(point.load(), title=name)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"The entry point {point.value!r} of the method `{name}` does not load: "
            f"{type(error).__name__}: {reason}."
        ) from error


def _as_method(thing: Any, *, title: str) -> NamedMethod:
    """Return a method as it is, and a bare update as a method that fixes nothing."""
    return thing if isinstance(thing, NamedMethod) else NamedMethod(title=title, update=thing)
