"""Searching for settings on validation rows; test rows are never read.

Every trial is a run's folder. Where no setting of pretraining is searched for, all trials begin from one
pretrained model. A trial that is half-way among the worst third of those before it is given up.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build
from partita.config.changes import with_values
from partita.config.provenance import find_code, made_with
from partita.config.reading import config_of, warn_replaced
from partita.config.schema import Config
from partita.config.tasks import build_task, data_files
from partita.durable import replace_file
from partita.errors import ConfigError, RunFailed, needed
from partita.methods import registry
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore, labeled
from partita.protocol import Stage
from partita.studies import run as runner
from partita.studies.candidates import Candidates
from partita.studies.search_space import Search, check_search
from partita.studies.trials import Hopeless, Trial, Tuned, Watch
from partita.training import loop as pipeline
from partita.training.evaluation import Row

_HELD_OUT = 0.2
"""Of each device's training rows, where the config does not say how many."""
_BEFORE = ("pretrain.", "model.", "task.", "seed", "personalize.method", "partition.frozen")
"""Keys that change the pretrained model, or whether a run begins from it."""
_START = "start"
"""The folder of what all trials begin from."""
_LOOKS = 4
"""How often a training stage is looked at on its way, to give up what is hopeless."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where trials are made."""

    values: Mapping[str, Any]
    """The config, as values."""
    beside: Path
    """Where files that it names are looked for."""
    folder: Path
    """Where each trial gets a folder of its own."""
    start: Path | None = None
    """A model that all trials begin from, pretrained without the validation rows; without one, theirs is
    pretrained here."""


def begin(values: Mapping[str, Any], beside: Path, search: Search, trials: int) -> Ground:
    """Return where to tune, in a new folder, once it is seen that every value can be tried."""
    check_search(search, trials)
    find_code(values.get("made_with", {}), beside)
    config = config_of(values)
    _check_free(config.personalize.method, search)
    for key, choices in search.items():
        for choice in choices:
            check_trial(values, beside, {key: choice})
    folder = runner.claim(config, f"{config.name}-tune")
    warn_replaced(values)
    return Ground(values=values, beside=beside, folder=folder)


def _check_free(method: str, search: Search) -> None:
    """Raise where the search is over a setting that the method fixes."""
    fixed = {} if "personalize.method" in search else registry.find(method).settings
    for key in search:
        if key in fixed:
            raise ConfigError(f"`{key}` cannot be searched: the method `{method}` sets it to {fixed[key]!r}.")


def check_trial(values: Mapping[str, Any], beside: Path, choice: Mapping[str, Any] | None = None) -> None:
    """Raise where a config cannot be tried on validation rows, with a choice of values in it."""
    needed("optuna", by="Tuning", extra="tune")
    build(config_of(_judged(values, choice)), beside)


def tune(
    ground: Ground, search: Search, *, trials: int = 0, tick: OnProgress, told: pipeline.Watch = ignore
) -> Tuned:
    """Try values on validation rows and return what came out.

    Args:
        ground: what is tuned, and where.
        search: what to try.
        trials: how many choices; 0: every combination.
        tick: told of progress.
        told: told of every round, and of which trial it is.

    Raises:
        RunFailed: no trial came to its end.
    """
    optuna = needed("optuna", by="Tuning", extra="tune")
    find_code(ground.values.get("made_with", {}), ground.beside)
    config = config_of(_judged(ground.values))
    task, _ = build_task(config, ground.beside)
    direction = task.metrics[task.headline].direction
    own = {key: _said(config, key) for key in search}
    candidates = Candidates(optuna, search, own=own, direction=direction, seed=config.seed, trials=trials)
    start = ground.start
    if start is None and config.pretrain.rounds and not any(key.startswith(_BEFORE) for key in search):
        start = pretrain(ground, tick, told)
    done: list[Trial] = []
    for number in range(candidates.count):
        asked, choice = candidates.ask()
        watch = Watch(
            asked,
            number,
            candidates.count,
            tick,
            looks=_LOOKS if candidates.can_give_up else 0,
            told=labeled(told, _folder_of(number)),
        )
        done.append(_try(ground, start, choice, watch))
        candidates.tell(asked, done[-1].value)
    ended = [trial for trial in done if trial.value is not None]
    if not ended:
        raise RunFailed(f"No trial came to its end: {done[0].said}")
    best = {"up": max, "down": min}[direction](ended, key=lambda trial: trial.value)
    return Tuned(metric=task.headline, trials=done, best=best)


def _said(config: Config, key: str) -> Any:
    """Return what a config says of a key."""
    section, _, leaf = key.partition(".")
    home = getattr(config, section, None)
    value = getattr(home, leaf, getattr(home, "options", {}).get(leaf))
    return config.personalize.shared_lr if value is None and leaf == "personal_lr" else value


def write_tuned(tuned: Tuned, ground: Ground) -> Path:
    """Write the config with the best values, for a run on all training rows, and return its path."""
    values = with_values(ground.values, {**tuned.best.choice, "out": None})
    config, folder = config_of(values), ground.folder.resolve()
    files = {f"task.{key}": path for key, path in data_files(config, ground.beside).items()}
    if config.model.start:
        files["model.start"] = ground.beside / config.model.start
    changes: dict[str, Any] = {key: os.path.relpath(path.resolve(), folder) for key, path in files.items()}
    if not config.evaluate.choose and config.evaluate.split != "validation":
        changes["task.validation"] = None
    values = with_values(values, {**changes, "made_with": made_with(config, folder)})
    path = ground.folder / "tuned.toml"
    replace_file(path, tomli_w.dumps(values).encode())
    return path


def _judged(
    values: Mapping[str, Any], choice: Mapping[str, Any] | None = None, *, looks: int = 0
) -> dict[str, Any]:
    """Return the config of a trial: judged by validation rows, and looked at so often on its way."""
    own = with_values(values, {**(choice or {}), "compare": None, "out": None})
    config = config_of(own)
    rounds = config.personalize.rounds or config.pretrain.rounds
    judged = {
        "task.validation": config.task.options.get("validation") or _HELD_OUT,
        "evaluate.split": "validation",
        "evaluate.choose": "",
        "evaluate.every": max(1, rounds // (looks + 1)) if looks else 0,
        "finetune.baseline": False,
    }
    return with_values(own, judged)


def pretrain(ground: Ground, tick: OnProgress, told: pipeline.Watch = ignore) -> Path:
    """Pretrain once for all trials, or go on with that, and return the file that they begin from."""

    def watch(line: Row, done: int, total: int) -> None:
        labeled(told, _START)(line, done, total)
        tick(0, 1, f"pretraining for all trials, {100 * done // total} %")

    only = {
        "personalize": {"method": registry.REFERENCE, "rounds": 0},
        "partition": {"personal": "none"},
        "out": str(ground.folder / _START),
    }
    values = with_values(_judged(ground.values), only)
    run = runner.go_on(config_of(values), ground.beside)
    runner.finish(run, watch)
    return run.folder / "shared" / f"{Stage.PRETRAINED}.safetensors"


def _folder_of(number: int) -> str:
    return f"trial-{number}"


def _try(ground: Ground, start: Path | None, choice: Mapping[str, Any], watch: Watch) -> Trial:
    """Make one trial."""
    number = watch.number
    changes: dict[str, Any] = {"out": str(ground.folder / _folder_of(number))}
    if start is not None:
        changes |= {"model.start": str(start.resolve()), "model.start_names": None, "pretrain.rounds": 0}
    values = with_values(_judged(ground.values, choice, looks=watch.looks), changes)
    try:
        summary = runner.finish(runner.prepare(config_of(values), ground.beside), watch)
    except (RunFailed, Hopeless) as error:
        return Trial(number=number, choice=choice, value=None, said=str(error))
    # A model that has diverged has no metric: neither an earlier stage nor the devices left speak for it.
    last = summary["stages"].get(watch.stage, {"devices": 0})
    measured = max((stage["devices"] for stage in summary["stages"].values()), default=0)
    if not measured or last["devices"] < measured:
        said = f"{measured - last['devices']} of {measured} devices have no {summary['metric']} at the end"
        return Trial(number=number, choice=choice, value=None, said=said)
    return Trial(number=number, choice=choice, value=last["weighted_mean"], said="done")
