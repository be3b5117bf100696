"""A search in its folder: the values to try, the configs of its trials, and the tuned config."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build, build_execution, build_plan, check_machine
from partita.config.changes import value_at, with_values
from partita.config.files import contents_of, find_files
from partita.config.overrides import relative_to
from partita.config.provenance import find_own_code, made_with
from partita.config.reading import config_of, read_values, warn_replaced
from partita.config.schema import Config
from partita.durable import replace_file
from partita.errors import ConfigError, needed
from partita.executors.settings import Execution
from partita.methods import registry
from partita.seals import read_json, sealed_json, sealed_text
from partita.studies.claiming import claimed
from partita.studies.folders import SEARCH_FILE, check_recorded, check_sealed, is_search, not_a
from partita.studies.same_task import fingerprint_in
from partita.studies.trials import SearchSpace, Tuned, check_space

_VALIDATION = 0.2
"""Share of training rows held out for validation if the config has none."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A config to tune, and the folder of its trials."""

    values: Mapping[str, Any]
    """The config's values."""
    beside: Path
    """The folder of the config, where files that it names are found."""
    folder: Path
    """The folder that gets one folder per trial."""
    space: SearchSpace
    """The values to try."""
    trials: int = 0
    """Number of trials; 0: every combination."""
    start: Path | None = None
    """A model that all trials begin from, pretrained without the validation rows; None: it is pretrained
    first."""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    """The parts of the task that must not change on resume; empty in a comparison, which checks its own."""

    @property
    def execution(self) -> Execution:
        """How many of its trials are carried out at a time."""
        return build_execution(config_of(self.values))


def begin(values: Mapping[str, Any], beside: Path, space: SearchSpace, trials: int) -> Tuning:
    """Return a tuning in a new folder, after checking that every value of the search space can be tried."""
    check_space(space, trials)
    find_own_code({**values, **space}, beside)
    config = config_of(values)
    _check_free(config.personalize.method, space)
    for key, choices in space.items():
        for choice in choices:
            check_trial(values, beside, {key: choice})
    with claimed(config, f"{config.name}-tune") as folder:
        warn_replaced(values)
        _write(values, beside, folder, space, trials)
        return reopen(folder)


def _write(values: Mapping[str, Any], beside: Path, folder: Path, space: SearchSpace, trials: int) -> None:
    """Write what a search consists of, with paths relative to its folder; its config comes last."""
    config = config_of(values)
    tried = {key: [with_values(values, {key: choice}) for choice in space[key]] for key in space}
    found = {key: [value_at(_from_folder(one, beside, folder), key) for one in tried[key]] for key in tried}
    versions = made_with(config, folder, *(config_of(one) for each in tried.values() for one in each))
    versions |= contents_of(config, beside)
    settled = {**_from_folder(values, beside, folder), "made_with": versions}
    search = {"space": found, "trials": trials, "fingerprint": fingerprint_in(trial_config(settled), folder)}
    replace_file(folder / SEARCH_FILE, sealed_json(search))
    replace_file(folder / "config.toml", sealed_text(tomli_w.dumps(settled)))


def reopen(folder: Path, *, workers: int | None = None) -> Tuning:
    """Return the tuning in a folder, to begin or to resume it.

    Args:
        folder: the folder.
        workers: the number of trials at a time; None: the search's own.

    Raises:
        ConfigError: there is none, or its files are damaged.
    """
    if not is_search(folder):
        raise not_a("search", folder, SEARCH_FILE)
    check_sealed(folder / "config.toml")
    values = read_values(folder / "config.toml")
    check_recorded(values, folder, "search")
    if workers is not None:
        values = with_values(values, {"workers": workers})
    search = read_json(folder / SEARCH_FILE)
    try:
        return Tuning(values=values, beside=folder, folder=folder, **search)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`{folder / SEARCH_FILE}` is damaged: {error}") from error


def _from_folder(values: Mapping[str, Any], beside: Path, folder: Path) -> dict[str, Any]:
    """Return a config's values with paths relative to the folder of its search, without `out`."""
    files = find_files(config_of(values), beside)
    return with_values(values, {**relative_to(folder, files), "out": None})


def _check_free(method: str, space: SearchSpace) -> None:
    """Raise if the search is over a setting that the method fixes."""
    fixed = {} if "personalize.method" in space else registry.find(method).settings
    for key in space:
        if key in fixed:
            raise ConfigError(f"`{key}` cannot be searched: the method `{method}` sets it to {fixed[key]!r}.")


def check_trial(values: Mapping[str, Any], beside: Path, choice: Mapping[str, Any] | None = None) -> None:
    """Raise if a config with a choice of values cannot be run on validation rows."""
    needed("optuna", by="Tuning", extra="tune")
    config = config_of(trial_values(values, choice))
    check_machine(config)
    build(config, beside)


def write_tuned(tuned: Tuned, tuning: Tuning) -> Path:
    """Write the config with the best values, for a run on all training rows, and return its path."""
    values = with_values(tuning.values, tuned.best.choice)
    config, folder = config_of(values), tuning.folder.resolve()
    versions = made_with(config, folder) | contents_of(config, tuning.beside)
    changes: dict[str, Any] = {"made_with": versions}
    if any(training.patience for training in build_plan(config).trainings.values()):
        changes["task.validation"] = _validation_of(config)
    elif not config.evaluate.choose and config.evaluate.split != "validation":
        changes["task.validation"] = None
    values = with_values(values, changes)
    path = tuning.folder / "tuned.toml"
    replace_file(path, sealed_text(tomli_w.dumps(values)))
    return path


def final_run(config: Path) -> str:
    """Return the sentence about the run of a config that `write_tuned` has written."""
    share = value_at(read_values(config), "task.validation")
    data = (
        f"all training data but {100 * share:g} % held out for validation" if share else "all training data"
    )
    return f"The final run, on {data}: partita run {config}"


def _validation_of(config: Config) -> float:
    """Return the share of training rows that a search holds out."""
    return config.task.options.get("validation") or _VALIDATION


def trial_config(values: Mapping[str, Any]) -> Config:
    """Return the config of a trial with a config's own values."""
    return config_of(trial_values(values))


def trial_values(
    values: Mapping[str, Any], choice: Mapping[str, Any] | None = None, *, checks: int = 0
) -> dict[str, Any]:
    """Return the config of a trial: evaluated on validation rows, and so many times during training."""
    own = with_values(values, {**(choice or {}), "compare": None, "out": None})
    config = config_of(own)
    rounds = config.personalize.rounds or config.pretrain.rounds
    changes = {
        "task.validation": _validation_of(config),
        "evaluate.split": "validation",
        "evaluate.choose": "",
        "evaluate.every": max(1, rounds // (checks + 1)) if checks else 0,
        "evaluate.sample": "all",
        "finetune.baseline": False,
    }
    return with_values(own, changes)


def folder_of(number: int | str) -> str:
    """Return the name of the folder of a trial, or with `*` a pattern for those of all."""
    return f"trial-{number}"
