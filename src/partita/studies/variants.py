"""The methods of a comparison: those listed, those always compared, and the variants of both by suffix."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

from partita.config.changes import dotted, value_at
from partita.config.reading import unknown_key
from partita.config.schema import CompareConfig, Config
from partita.errors import ConfigError, did_you_mean
from partita.methods import registry
from partita.methods.named import NamedMethod
from partita.studies.columns import chosen

STATELESS = "-stateless"
"""The suffix of a method whose devices keep nothing between rounds."""
CONTINUED = "-continued"
"""The suffix of a method that begins from the model of the round-matched reference, `registry.REFERENCE`."""
_LISTED = {"personalize.method": "methods", "seed": "seeds"}
"""Keys that the settings of one method must not have, and the lists of a comparison that are for them."""
_SHORT = tuple(field.name for field in fields(CompareConfig))
_PLAIN = tuple(f.name for f in fields(Config) if not is_dataclass(f.type) and f.name != "made_with")
"""Keys of a config outside of its sections."""


def in_full(overrides: Sequence[str]) -> list[str]:
    """Return overrides with the short names of `compare` spelled out, and lists as TOML lists.

    >>> in_full(["methods=fedalt,fedsim", "seeds=2", "evaluate.devices=5", "reuse=false"])
    ['compare.methods=["fedalt", "fedsim"]', 'compare.seeds=2', 'evaluate.devices=5', 'reuse=false']
    """
    return [_in_full(*override.partition("=")) for override in overrides]


def _in_full(key: str, equals: str, text: str) -> str:
    name = key.removeprefix("compare.")
    if equals and key.isidentifier() and key not in (*_SHORT, *_PLAIN) and not text.startswith("{"):
        raise unknown_key("", key, [*_SHORT, *_PLAIN], of="`partita compare` outside of sections")
    if name in ("methods", "partitions", "columns") and not text.startswith("["):
        return f"compare.{name}{equals}{json.dumps([part for part in text.split(',') if part])}"
    return f"{key if key not in _SHORT else f'compare.{key}'}{equals}{text}"


def name_of(method: str) -> str:
    """Return the name of a method without the suffix of its variant.

    >>> name_of("fedalt-stateless"), name_of("ditto-continued"), name_of("fedavg")
    ('fedalt', 'ditto', 'fedavg')
    """
    return method.removesuffix(STATELESS).removesuffix(CONTINUED)


def named(method: str) -> NamedMethod:
    """Return the method of a cell, of whichever variant."""
    return registry.find(name_of(method))


def title_of(method: str, reference: str = "more rounds") -> str:
    """Return the name of a cell's method in tables; `reference` names what a continued one begins from.

    >>> title_of("fedalt-stateless"), title_of("partita:LocalAlt")
    ('FedAlt, stateless', 'LocalAlt')
    >>> title_of("finetune-continued", "continued FedAvg")
    'Finetune after continued FedAvg'
    """
    title = named(method).title
    if method.endswith(CONTINUED):
        return f"{title} after {reference}"
    return f"{title}, stateless" if method.endswith(STATELESS) else title


def titles_of(methods: Sequence[str], reference: str = "more rounds") -> dict[str, str]:
    """Return the names of methods in tables; of methods with the same title, the names that were given.

    >>> titles_of(["fedsim", "fedalt", "partita.methods.fedalt:METHOD"])
    {'fedsim': 'FedSim', 'fedalt': 'fedalt', 'partita.methods.fedalt:METHOD': 'partita.methods.fedalt:METHOD'}
    """
    titles = {method: title_of(method, reference) for method in methods}
    twice = {title for title, count in Counter(titles.values()).items() if count > 1}
    return {method: method if title in twice else title for method, title in titles.items()}


def listed(compare: CompareConfig) -> list[str]:
    """Return the methods that are always compared, then those that are listed, or the default ones."""
    known = registry.every()
    always = [name for name, method in known.items() if method.always_compared]
    default = [name for name, method in known.items() if method.compared_by_default]
    return list(dict.fromkeys([*always, *(default if compare.methods is None else compare.methods)]))


def compared(base: Config) -> list[str]:
    """Return the methods of a comparison, each that is also run after the reference's rounds twice."""
    return list(dict.fromkeys(_compared(base)))


def _compared(base: Config) -> Iterator[str]:
    for method in listed(base.compare):
        yield method
        if named(method).also_continued and _reference_trains(base):
            yield name_of(method) + CONTINUED


def _reference_trains(base: Config) -> bool:
    """Return whether the reference has rounds beyond the model that all methods begin from."""
    own = dotted(base.compare.settings.get(registry.REFERENCE, {}))
    return bool(own.get("personalize.rounds", base.personalize.rounds))


def check(base: Config) -> None:
    """Raise where a comparison makes no sense for any task."""
    compare = base.compare
    if compare.seeds < 1:
        raise ConfigError(f"`seeds` must be at least 1, got {compare.seeds}.")
    if compare.tune < 0:
        raise ConfigError(f"`tune` must be 0 (no tuning) or above, got {compare.tune}.")
    chosen(compare.columns)
    for method in (*listed(compare), *compare.settings):
        _check_method(method)
    for method, settings in compare.settings.items():
        _check_settings(method, settings)
    methods = compared(base)
    for method in methods:
        if method.endswith(CONTINUED) and not _reference_trains(base):
            raise ConfigError(f"`{method}` needs rounds to begin from: set `personalize.rounds` above 0.")
    if compare.baseline and compare.baseline not in methods:
        raise ConfigError(
            f"`baseline` must be one of the methods compared, {', '.join(methods)}, got {compare.baseline!r}."
        )


def _check_settings(method: str, settings: object) -> None:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"`compare.settings.{method}` must be a section, got {settings!r}.")
    if "workers" in settings:
        raise ConfigError(f"`compare.settings.{method}` cannot set `workers`: all methods share them.")
    for key, name in _LISTED.items():
        if value_at(settings, key) is not None:
            raise ConfigError(f"`compare.settings.{method}` cannot set `{key}`: use `compare.{name}` for it.")


def _check_method(method: str) -> None:
    name, known = name_of(method), registry.names()
    if name not in known and ":" not in name:
        raise ConfigError(
            f"There is no method {method!r}. Known: {', '.join(known)}; stateful ones also with the suffix "
            f"`{STATELESS}`; or an import path such as 'package.module:METHOD'.{did_you_mean(name, known)}"
        )
    found = registry.find(name, key="compare.methods")
    if method.endswith(STATELESS) and not found.is_stateful:
        raise ConfigError(f"`{name}` keeps no state between rounds: leave out `{STATELESS}`.")
    if method.endswith(CONTINUED) and not found.also_continued:
        raise ConfigError(f"`{name}` has no variant after the reference's rounds: leave out `{CONTINUED}`.")
