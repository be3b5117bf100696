"""The cells of a comparison: one run per method, personal part and seed, and the config of each."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from partita.config.changes import dotted, value_at, with_values
from partita.config.methods import with_settings
from partita.config.reading import config_of, to_values, unknown_key
from partita.config.schema import SERVER, Config, PersonalizeConfig
from partita.errors import ConfigError
from partita.methods import registry
from partita.methods.named import Budget, Citation
from partita.studies.partitions import Compared, label_of
from partita.studies.variants import CONTINUED, STATELESS, check, compared, name_of, named, title_of

START = ""
"""The method of the cell that only pretrains: the other cells of its seed begin from its model."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a comparison."""

    method: str
    partition: str
    """The personal part; empty where the method determines it."""
    seed: int
    values: Mapping[str, Any]
    """Its config, as values."""

    @property
    def row(self) -> tuple[str, str]:
        """The method and the personal part, which the same cell of other seeds has too."""
        return self.method, self.partition

    @property
    def kind(self) -> str:
        """The name without the seed."""
        whole = "-".join(filter(None, (self.method or "start", self.partition)))
        return re.sub(r"[^\w-]+", ".", whole)

    @property
    def name(self) -> str:
        """The name of the cell, and of its folder."""
        return f"{self.kind}-{self.seed}"

    @property
    def title(self) -> str:
        """The method's name in tables."""
        return title_of(self.method) if self.method != START else ""

    @property
    def citation(self) -> Citation | None:
        """The paper that the method comes from."""
        return named(self.method).citation if self.method != START else None

    @property
    def begins_pretrained(self) -> bool:
        """Whether it begins from the pretrained model of its seed, or from what the reference made of it."""
        return self.method != START and named(self.method).from_scratch is None

    @property
    def begins_continued(self) -> bool:
        """Whether it begins from the model of its seed's reference, which continues the pretrained one."""
        return self.method.endswith(CONTINUED)

    def config(self, *, out: Path, start: Path | None = None) -> Config:
        """Return its config, for a run in the folder `out` that begins from the file `start`."""
        changes: dict[str, Any] = {"out": str(out), "name": self.name}
        if start is not None:
            changes |= {"model.start": str(start), "model.start_names": None, "pretrain.rounds": 0}
        return config_of(with_values(self.values, changes))


def base_of(values: Mapping[str, Any]) -> Config:
    """Return the config that all cells have in common, without `personalize.method`."""
    return config_of(_without_method(values))


def _without_method(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values without the config's method and the hyperparameters of that method."""
    section = values.get("personalize", {})
    if not isinstance(section, Mapping):
        return dict(values)
    general = {field.name for field in fields(PersonalizeConfig)} - {"method", "options"}
    kept = {key: value for key, value in section.items() if key in general or key.startswith(SERVER)}
    return {**values, "personalize": kept}


def _check_hyperparameters(values: Mapping[str, Any], methods: Sequence[str]) -> None:
    """Raise if `[personalize]` has a key that is neither general nor a hyperparameter of its method.

    Cells of other methods leave such keys out, so that none of them would report it.
    """
    section, general = values.get("personalize", {}), [field.name for field in fields(PersonalizeConfig)]
    further = section.keys() - _without_method(values).get("personalize", {}).keys() - {"method"}
    own = registry.find(_run_method(values)).hyperparameters if further else {}
    for key in sorted(further - own.keys()):
        having = {name_of(method): named(method).hyperparameters for method in methods}
        for name in (name for name, hyperparameters in having.items() if key in hyperparameters):
            raise ConfigError(
                f"`personalize.{key}` is a hyperparameter of `{name}`, not of the config's method, "
                f"`{_run_method(values)}`: set it in `[compare.settings.{json.dumps(name)}]`."
            )
        known = [name for name in general if name != "options"]
        raise unknown_key("personalize.", key, [*known, *dict.fromkeys(chain(own, *having.values()))])


def cells_of(values: Mapping[str, Any], *, devices: int, partitions: Compared) -> list[Cell]:
    """Return the cells of a comparison, seed by seed, the pretraining of each seed first.

    Args:
        values: the config, as values.
        devices: the number of devices that train.
        partitions: the personal parts to compare.
    """
    base = base_of(values)
    check(base)
    _check_hyperparameters(values, compared(base))
    rows = [(START, ""), *_rows(base, partitions.names)]
    return [
        _cell(row[0], seed, _values(values, row, seed, devices, partitions), default=partitions.own)
        for seed in range(base.seed, base.seed + base.compare.seeds)
        for row in rows
    ]


def _cell(method: str, seed: int, values: Mapping[str, Any], *, default: str) -> Cell:
    """Return a cell that is named after its own config, which the settings of its method may have changed."""
    partition = ""
    if method != START:
        settled, own = with_settings(values), named(method)
        if own.is_stateful:
            keeps_state = value_at(settled, "personalize.stateful") is not False
            method = method.removesuffix(STATELESS) + ("" if keeps_state else STATELESS)
        if not own.personal:
            partition = label_of(value_at(settled, "partition.personal") or default)
    return Cell(method=method, partition=partition, seed=seed, values=values)


def _rows(base: Config, partitions: Sequence[str]) -> Iterator[tuple[str, str]]:
    for method in compared(base):
        if named(method).personal:
            yield method, ""
        else:
            yield from ((method, partition) for partition in dict.fromkeys(partitions))


def _values(
    given: Mapping[str, Any], row: tuple[str, str], seed: int, devices: int, partitions: Compared
) -> dict[str, Any]:
    """Return the config of one cell, as values."""
    method, partition = row
    frozen = partitions.frozen or None
    changes: dict[str, Any] = {"compare": None, "out": None, "seed": seed, "finetune.baseline": False}
    if method == START:
        only = {"personalize": {"method": registry.REFERENCE, "rounds": 0}, "partition": {"personal": "none"}}
        return with_values(given, {**changes, **only, "partition.frozen": frozen, "evaluate.choose": ""})
    name, own, base = name_of(method), named(method), base_of(given)
    common = given if name == _run_method(given) else _without_method(given)
    changes |= {"personalize.method": name, "personalize.stateful": not method.endswith(STATELESS)}
    if own.personal:
        changes |= {"partition.personal": None, "partition.shared": None, "partition.frozen": frozen}
    elif partition != partitions.own:
        personal = partition if partition.isidentifier() else partition.split()
        changes |= {"partition.personal": personal, "partition.shared": None, "partition.frozen": frozen}
    if own.from_scratch is not None:
        # It has no pretrained model to choose beside a device's own.
        changes |= {"evaluate.choose": "", **own.from_scratch(_budget(base, devices))}
    for key in dict.fromkeys((name, method)):
        changes |= dotted(base.compare.settings.get(key, {}))
    return with_values(common, changes)


def _run_method(values: Mapping[str, Any]) -> str:
    """Return the method that a config has for a run."""
    return values.get("personalize", {}).get("method", registry.DEFAULT)


def _budget(base: Config, devices: int) -> Budget:
    """Return the amount of training of a method that begins from the pretrained model."""
    early, late = base.pretrain, base.personalize
    visits = early.rounds * early.devices_per_round * _passes(early.shared_epochs, early.shared_steps)
    both = _passes(late.shared_epochs, late.shared_steps) + _passes(late.personal_epochs, late.personal_steps)
    visits += late.rounds * late.devices_per_round * both
    return Budget(
        rounds=early.rounds + late.rounds,
        passes=max(1, math.ceil(visits / devices) + base.finetune.epochs),
        pretrain=to_values(early),
    )


def _passes(epochs: int, steps: int) -> int:
    """Return the passes over its data that a visit makes; any number of steps counts as one."""
    return 1 if steps else epochs
