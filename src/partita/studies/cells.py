"""The cells of a comparison: which runs it is made of, and what each of them is."""

import copy
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from partita.config.methods import NAMED
from partita.config.reading import config_of, did_you_mean, to_values
from partita.config.schema import CompareConfig, Config, FinetuneConfig, PretrainConfig
from partita.errors import ConfigError

STATELESS = "-stateless"
START = ""
"""The method of a cell that only pretrains: all others of its seed begin from what it leaves."""
CONTINUED = "fedavg"
LOCAL = "local"
_ALWAYS = (LOCAL, CONTINUED)
"""What tells a gain from personalization from a gain from more training, and from no federation."""
_USUAL = ("input", "output", "adapter")
"""The paper's partitions."""
_SHORT = tuple(field.name for field in fields(CompareConfig))
_FROM_SCRATCH = (LOCAL, "fedbabu", "fedadam")
"""Methods that do not begin from the pretrained model."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a comparison."""

    method: str
    partition: str
    """Empty where the method says itself what is personal."""
    seed: int
    values: Mapping[str, Any]
    """Its config, as values."""

    @property
    def row(self) -> tuple[str, str]:
        """What it has in common with the same cell of other seeds."""
        return self.method, self.partition

    @property
    def kind(self) -> str:
        """What it is called without its seed."""
        whole = "-".join(filter(None, (self.method or "start", self.partition)))
        return re.sub(r"[^\w-]+", ".", whole)

    @property
    def name(self) -> str:
        """What it is called, as a folder too."""
        return f"{self.kind}-{self.seed}"

    @property
    def title(self) -> str:
        """What tables call its method."""
        return title_of(self.method) if self.method != START else ""

    @property
    def cites(self) -> str:
        """The paper that its method comes from, in `references.bib`; empty where we know of none."""
        named = NAMED.get(self.method.removesuffix(STATELESS))
        return named.cites if named else ""

    @property
    def begins_pretrained(self) -> bool:
        """Whether it begins from what its seed's first cell leaves."""
        return self.method != START and self.method not in _FROM_SCRATCH

    def config(self, *, out: Path, start: Path | None = None) -> Config:
        """Return its config, for a run in the folder `out` that begins from the file `start`."""
        values: dict[str, Any] = copy.deepcopy({**self.values, "out": str(out), "name": self.name})
        if start is not None:
            model = {k: v for k, v in values.get("model", {}).items() if k != "start_names"}
            values["model"] = model | {"start": str(start)}
            values["pretrain"] = values.get("pretrain", {}) | {"rounds": 0}
        return config_of(values)


def in_full(overrides: Sequence[str]) -> list[str]:
    """Return overrides with what `compare` takes by its short name in full, and lists as lists.

    >>> in_full(["methods=fedalt,fedsim", "seeds=2", "evaluate.devices=5"])
    ['compare.methods=["fedalt", "fedsim"]', 'compare.seeds=2', 'evaluate.devices=5']
    """
    return [_in_full(*override.partition("=")) for override in overrides]


def _in_full(key: str, equals: str, text: str) -> str:
    name = key.removeprefix("compare.")
    if name in ("methods", "partitions") and not text.startswith("["):
        return f"compare.{name}{equals}{json.dumps([part for part in text.split(',') if part])}"
    return f"{key if key not in _SHORT else f'compare.{key}'}{equals}{text}"


def has_nothing_personal(method: str) -> bool:
    """Return whether a method's name says that devices have no part of the model of their own."""
    named = NAMED.get(method.removesuffix(STATELESS))
    return named is not None and named.fixed.get("partition.personal") == "none"


def title_of(method: str) -> str:
    """Return what tables call a method.

    >>> title_of("fedalt-stateless"), title_of("my.module:Update")
    ('FedAlt, stateless', 'Update')
    """
    name = method.removesuffix(STATELESS)
    title = NAMED[name].title if name in NAMED else name.partition(":")[2]
    return f"{title}, stateless" if method.endswith(STATELESS) else title


def titles_of(methods: Sequence[str]) -> dict[str, str]:
    """Return what tables call some methods; those that would have the same title have all of their path.

    >>> titles_of(["fedalt", "mine:Update", "other:Update"])
    {'fedalt': 'FedAlt', 'mine:Update': 'mine:Update', 'other:Update': 'other:Update'}
    """
    titles = {method: title_of(method) for method in methods}
    twice = {title for title, count in Counter(titles.values()).items() if count > 1}
    return {method: method if title in twice else title for method, title in titles.items()}


def base_of(values: Mapping[str, Any]) -> Config:
    """Return the config that all cells have in common: whatever its own method is, it is not compared."""
    return config_of({**values, "personalize": {**values.get("personalize", {}), "method": "fedalt"}})


def cells_of(values: Mapping[str, Any], *, devices: int, parts: Sequence[str] = _USUAL) -> list[Cell]:
    """Return the cells of a comparison, seed by seed, each seed's start first.

    Args:
        values: the config, as values.
        devices: how many there are.
        parts: what the model names.
    """
    base = base_of(values)
    check(base.compare)
    first = base.seed
    partitions = base.compare.partitions or _own_partitions(base, parts)
    return [
        Cell(
            method=method,
            partition=partition,
            seed=seed,
            values=_values(values, base, method, partition, seed, devices),
        )
        for seed in range(first, first + base.compare.seeds)
        for method, partition in ((START, ""), *_rows(base.compare, partitions))
    ]


def _own_partitions(base: Config, parts: Sequence[str]) -> list[str]:
    """Return what is compared where it is not said: the usual that the model names, and the config's own."""
    own = base.partition.personal
    whole = own if isinstance(own, str) else " ".join(own)
    return list(dict.fromkeys([*(p for p in _USUAL if p in parts), *([whole] if whole != "none" else [])]))


def _rows(compare: CompareConfig, partitions: Sequence[str]) -> Iterator[tuple[str, str]]:
    for method in dict.fromkeys((*_ALWAYS, *compare.methods)):
        if _is_whole(method):
            yield method, ""
        else:
            yield from ((method, partition) for partition in dict.fromkeys(partitions))


def _is_whole(method: str) -> bool:
    named = NAMED.get(method.removesuffix(STATELESS))
    return named is not None and named.whole


def check(compare: CompareConfig) -> None:
    """Raise where a comparison makes no sense, whatever its task."""
    if compare.seeds < 1:
        raise ConfigError(f"`seeds` must be at least 1, got {compare.seeds}.")
    if compare.tune < 0:
        raise ConfigError(f"`tune` must be 0 (no tuning) or above, got {compare.tune}.")
    compared = (*_ALWAYS, *compare.methods)
    for method in (*compared, *compare.settings):
        _check_method(method)
    for method, settings in compare.settings.items():
        if not isinstance(settings, Mapping):
            raise ConfigError(f"`compare.settings.{method}` must be a section, got {settings!r}.")
    if baseline_of(compare) not in compared:
        raise ConfigError(
            f"`baseline` must be one of the methods compared, {', '.join(dict.fromkeys(compared))}, "
            f"got {compare.baseline!r}."
        )


def _check_method(method: str) -> None:
    name = method.removesuffix(STATELESS)
    if name not in NAMED and ":" not in name:
        raise ConfigError(
            f"There is no method {method!r}. Known: {', '.join(NAMED)}, where devices keep a state also with "
            f"`{STATELESS}`; or an import path such as 'package.module:Update'."
            f"{did_you_mean(name, list(NAMED))}"
        )
    if method.endswith(STATELESS) and name in NAMED and not NAMED[name].keeps_state:
        raise ConfigError(f"Under `{name}` devices keep nothing between rounds: leave out `{STATELESS}`.")


def baseline_of(compare: CompareConfig) -> str:
    """Return the method that others are paired with."""
    return compare.baseline or ("finetune" if "finetune" in compare.methods else CONTINUED)


def _values(
    given: Mapping[str, Any],
    base: Config,
    method: str,
    partition: str,
    seed: int,
    devices: int,
) -> dict[str, Any]:
    """Return the config of one cell, as values."""
    values: dict[str, Any] = copy.deepcopy({k: v for k, v in given.items() if k not in ("compare", "out")})
    values["seed"] = seed
    for section in ("partition", "pretrain", "personalize", "finetune"):
        values[section] = dict(values.get(section, {}))
    values["finetune"]["baseline"] = False
    if method in (START, *_FROM_SCRATCH):
        # They have no pretrained model to choose beside a device's own.
        values["evaluate"] = values.get("evaluate", {}) | {"choose": ""}
    if method == START:
        values["personalize"] |= {"method": CONTINUED, "rounds": 0}
        values["partition"] = {"personal": "none"}
        return values
    values["personalize"]["method"] = method.removesuffix(STATELESS)
    values["personalize"]["stateful"] = not method.endswith(STATELESS)
    if _is_whole(method):
        values["partition"] = {
            k: v for k, v in values["partition"].items() if k not in ("personal", "shared")
        }
    else:
        is_name = partition.isidentifier()
        values["partition"]["personal"] = partition if is_name else partition.split()
    if method == LOCAL:
        values["finetune"] = _alone(base, devices)
    rounds = base.pretrain.rounds + base.personalize.rounds
    if method == "fedbabu":
        values["personalize"] |= _fields(base.pretrain) | {"rounds": rounds}
        values["pretrain"]["rounds"] = 0
    if method == "fedadam":
        values["pretrain"]["rounds"] = rounds
        if base.pretrain.server_optimizer != "fedadam":
            values["pretrain"].pop("server_lr", None)
    for name in dict.fromkeys((method.removesuffix(STATELESS), method)):
        _merge(values, base.compare.settings.get(name, {}))
    return values


def _alone(base: Config, devices: int) -> dict[str, Any]:
    """Return how a device trains alone: as in pretraining, as many passes as in all of the pipeline."""
    early, late = base.pretrain, base.personalize
    visits = early.rounds * early.devices_per_round * _passes(early.shared_epochs, early.shared_steps)
    both = _passes(late.shared_epochs, late.shared_steps) + _passes(late.personal_epochs, late.personal_steps)
    visits += late.rounds * late.devices_per_round * both
    passes = math.ceil(visits / devices) + base.finetune.epochs
    own = {field.name for field in fields(FinetuneConfig)}
    taken = {name: value for name, value in _fields(early).items() if name in own}
    return taken | {"personal_lr": early.shared_lr, "epochs": max(1, passes), "baseline": False}


def _passes(epochs: int, steps: int) -> int:
    """Return the passes over its data that a visit makes; some steps, however many, count as one."""
    return 1 if steps else epochs


def _fields(config: PretrainConfig) -> dict[str, Any]:
    return to_values(config)


def _merge(values: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Put values for one method in the place of the others', in place."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and isinstance(values.get(name, {}), dict):
            _merge(values.setdefault(name, {}), value)
        else:
            values[name] = value
