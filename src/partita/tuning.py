"""Searching for settings on validation rows; test rows are never read.

Every trial is a run's folder. Where no setting of pretraining is searched for, all trials begin from one
pretrained model. A trial that is half-way among the worst third of those before it is given up.
"""

import copy
import itertools
import os
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from partita import runner
from partita.config.building import build
from partita.config.imports import find_code, made_with
from partita.config.reading import config_of
from partita.config.tasks import build_task, data_files
from partita.durable import replace_file
from partita.errors import ConfigError, RunFailed, needed
from partita.evaluation import Row, weighted_mean
from partita.protocol import Stage
from partita.report.progress import Tick
from partita.report.sheets import Entry, Sheet, Spread

Search = Mapping[str, Sequence[Any]]
"""Values to try, by key."""
_HELD_OUT = 0.2
"""Of each device's training rows, where the config does not say how many."""
_BEFORE = ("pretrain.", "model.", "task.", "seed", "personalise.method", "partition.frozen")
"""Keys that change the pretrained model, or whether a run begins from it."""
_LOOKS = 4
"""How often a training stage is looked at on its way, to give up what is hopeless."""
_KEPT = 67.0
"""The share of trials, in percent, that a trial must be among half-way to go on."""
_PATIENCE = 3
"""Trials that are done in full before any is given up."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One choice of values, and what it gave."""

    number: int
    choice: Mapping[str, Any]
    value: float | None
    """The metric on validation rows after the last stage; None where the trial was given up or failed."""
    said: str
    """How it ended."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a search found."""

    metric: str
    trials: Sequence[Trial]
    best: Trial


class _Hopeless(Exception):
    """A trial is given up."""


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return plain overrides, and the values to search among of those that list several.

    >>> split_arguments(["seed=2", "finetune.personal_lr=0.1,0.01"])
    (['seed=2'], {'finetune.personal_lr': [0.1, 0.01]})
    """
    plain: list[str] = []
    search: dict[str, list[Any]] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        if "," in text and text[0] not in "[{\"'":
            search[key] = [_value(part) for part in text.split(",") if part]
        else:
            plain.append(argument)
    return plain, search


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
    _check(search, trials)
    config = config_of(values)
    find_code(config, beside)
    for key, choices in search.items():
        for choice in choices:
            check(values, beside, {key: choice})
    folder = runner.claim(config, f"{config.name}-tune")
    return Ground(values=values, beside=beside, folder=folder)


def check(values: Mapping[str, Any], beside: Path, choice: Mapping[str, Any] | None = None) -> None:
    """Raise where a config cannot be tried on validation rows, with a choice of values in it."""
    needed("optuna", by="Tuning", extra="tune")
    build(config_of(_judged(values, choice)), beside)


def tune(ground: Ground, search: Search, *, trials: int = 0, tick: Tick) -> Tuned:
    """Try values on validation rows and return what came out.

    Args:
        ground: what is tuned, and where.
        search: what to try.
        trials: how many choices; 0: every combination.
        tick: told of progress.

    Raises:
        RunFailed: no trial came to its end.
    """
    optuna = needed("optuna", by="Tuning", extra="tune")
    config = config_of(_judged(ground.values))
    find_code(config, ground.beside)
    task, _ = build_task(config, ground.beside)
    direction = task.metrics[task.headline].direction
    candidates = _Candidates(optuna, search, direction=direction, seed=config.seed, trials=trials)
    start = ground.start
    if start is None and config.pretrain.rounds and not any(key.startswith(_BEFORE) for key in search):
        start = pretrain(ground, tick)
    done: list[Trial] = []
    for number in range(candidates.count):
        asked, choice = candidates.ask()
        done.append(_try(ground, start, choice, _Watch(asked, number, candidates.count, tick)))
        candidates.tell(asked, done[-1].value)
    ended = [trial for trial in done if trial.value is not None]
    if not ended:
        raise RunFailed(f"No trial came to its end: {done[0].said}")
    best = {"up": max, "down": min}[direction](ended, key=lambda trial: trial.value)
    return Tuned(metric=task.headline, trials=done, best=best)


class _Candidates:
    """Asks Optuna what to try next, and never for the same again: it would give the same."""

    def __init__(self, optuna: Any, search: Search, *, direction: str, seed: int, trials: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        self._search = search
        self._left = [dict(zip(search, c, strict=True)) for c in itertools.product(*search.values())]
        self.count = min(trials or len(self._left), len(self._left))
        self._all = self.count == len(self._left)
        if not self._all:
            random.Random(seed).shuffle(self._left)
        self._study = optuna.create_study(
            direction={"up": "maximize", "down": "minimize"}[direction],
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.PercentilePruner(_KEPT, n_startup_trials=_PATIENCE),
        )

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """Return a trial of Optuna's, and its values: where all are wanted, those whose turn it is."""
        if self._all:
            self._study.enqueue_trial(self._left[0])
        asked, choice = self._asked()
        if choice not in self._left:
            self._study.tell(asked, state=self._states.FAIL)
            self._study.enqueue_trial(self._left[0])
            asked, choice = self._asked()
        self._left.remove(choice)
        return asked, choice

    def tell(self, asked: Any, value: float | None) -> None:
        """Tell Optuna what a trial gave, None where it came to no end."""
        state = self._states.PRUNED if value is None else self._states.COMPLETE
        self._study.tell(asked, value, state=state)

    def _asked(self) -> tuple[Any, dict[str, Any]]:
        asked = self._study.ask()
        choices = self._search.items()
        return asked, {key: asked.suggest_categorical(key, list(values)) for key, values in choices}


def trials_sheet(tuned: Tuned) -> Sheet:
    """Return all trials, the best one marked."""
    keys = list(tuned.best.choice)
    rows: list[list[Entry]] = [
        [
            str(trial.number),
            *(str(trial.choice[key]) for key in keys),
            None if trial.value is None else Spread(trial.value, is_best=trial is tuned.best),
            trial.said,
        ]
        for trial in tuned.trials
    ]
    return Sheet(
        name="trials",
        title=f"Validation {tuned.metric} of {len(rows)} trials",
        columns=["trial", *keys, tuned.metric, "ended"],
        rows=rows,
    )


def write_tuned(tuned: Tuned, ground: Ground) -> Path:
    """Write the config with the best values, for a run on all training rows, and return its path."""
    values = copy.deepcopy(dict(ground.values))
    values.pop("out", None)
    put(values, tuned.best.choice)
    config, folder = config_of(values), ground.folder.resolve()
    if not config.evaluate.choose and config.evaluate.split != "validation":
        values.get("task", {}).pop("validation", None)
    values["made_with"] = made_with(config, folder)
    for key, path in data_files(config, ground.beside).items():
        values["task"][key] = os.path.relpath(path.resolve(), folder)
    if config.model.start:
        values["model"]["start"] = os.path.relpath((ground.beside / config.model.start).resolve(), folder)
    path = ground.folder / "tuned.toml"
    replace_file(path, tomli_w.dumps(values).encode())
    return path


def put(values: dict[str, Any], choice: Mapping[str, Any]) -> None:
    """Put values in their places by dotted keys, in place."""
    for key, value in choice.items():
        *sections, leaf = key.split(".")
        home = values
        for section in sections:
            home = home.setdefault(section, {})
            if not isinstance(home, dict):
                raise ConfigError(f"`{section}` is not a section, got `{key}`.")
        home[leaf] = value


def _check(search: Search, trials: int) -> None:
    if not search:
        raise ConfigError("There is nothing to search for: give a key several values, `key=v1,v2`.")
    if trials < 0:
        raise ConfigError(f"`trials` must be 0 (every combination) or above, got {trials}.")
    for key, choices in search.items():
        odd = [choice for choice in choices if not isinstance(choice, str | int | float)]
        if odd:
            raise ConfigError(f"`{key}` can be searched among numbers and texts, got {odd[0]!r}.")


def _judged(values: Mapping[str, Any], choice: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a trial: judged by validation rows, now and then on its way too."""
    own = copy.deepcopy({key: value for key, value in values.items() if key not in ("compare", "out")})
    put(own, choice or {})
    config = config_of(own)
    held = config.task.options.get("validation") or _HELD_OUT
    rounds = config.personalise.rounds or config.pretrain.rounds
    judged = {
        "task.validation": held,
        "evaluate.split": "validation",
        "evaluate.choose": "",
        "evaluate.every": config.evaluate.every or max(1, rounds // (_LOOKS + 1)),
        "finetune.baseline": False,
    }
    put(own, judged)
    return own


def pretrain(ground: Ground, tick: Tick) -> Path:
    """Pretrain once for all trials, or go on with that, and return the file that they begin from."""
    values = _judged(ground.values)
    only = {
        "personalise.method": "fedavg",
        "personalise.rounds": 0,
        "partition": {"personal": "none"},
        "evaluate.every": 0,
        "out": str(ground.folder / "start"),
    }
    put(values, only)
    run = runner.go_on(config_of(values), ground.beside)
    runner.finish(
        run, lambda _, done, total: tick(0, 1, f"pretraining for all trials, {100 * done // total} %")
    )
    return run.folder / "shared" / f"{Stage.PRETRAINED}.safetensors"


def _try(ground: Ground, start: Path | None, choice: Mapping[str, Any], watch: "_Watch") -> Trial:
    """Make one trial."""
    number = watch.number
    values = _judged(ground.values, choice)
    put(values, {"out": str(ground.folder / f"trial-{number}")})
    if start is not None:
        values.get("model", {}).pop("start_names", None)
        put(values, {"model.start": str(start.resolve()), "pretrain.rounds": 0})
    try:
        summary = runner.finish(runner.prepare(config_of(values), ground.beside), watch).summary
    except (RunFailed, _Hopeless) as error:
        return Trial(number=number, choice=choice, value=None, said=str(error))
    # A model that has diverged has no metric: neither an earlier stage nor the devices left speak for it.
    last = summary["stages"].get(watch.stage, {"devices": 0})
    measured = max((stage["devices"] for stage in summary["stages"].values()), default=0)
    if not measured or last["devices"] < measured:
        said = f"{measured - last['devices']} of {measured} devices have no {summary['metric']} at the end"
        return Trial(number=number, choice=choice, value=None, said=said)
    return Trial(number=number, choice=choice, value=last["weighted_mean"], said="done")


@dataclass
class _Watch:
    """Watches a trial, and gives it up where it is hopeless."""

    asked: Any
    number: int
    count: int
    tick: Tick
    stage: str = ""
    """The stage of the last round."""
    _seen: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, line: Row, done: int, total: int) -> None:
        self.stage = line["stage"]
        self.tick(self.number + done / total, self.count, f"trial {self.number}, {100 * done // total} %")
        if line["work"] == "evaluate":
            self._seen += [(line["metric"], line["weight"])] if "metric" in line else []
        elif self._seen:
            metrics, weights = zip(*self._seen, strict=True)
            self._seen.clear()
            self.asked.report(weighted_mean(metrics, weights), done)
            if self.asked.should_prune():
                raise _Hopeless(f"given up after {done} of {total} rounds")
