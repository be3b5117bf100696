"""Searching for settings on validation rows; test rows are never read.

Every trial is a run with its own folder. Unless the search changes a setting of pretraining, all trials begin
from one pretrained model. A trial that is among the worst third of those before it is stopped early.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from partita.config.building import build
from partita.config.changes import value_at, with_values
from partita.config.files import contents_of, find_files, relative_to
from partita.config.provenance import find_own_code, made_with
from partita.config.reading import config_of, to_values, warn_replaced
from partita.config.schema import Config
from partita.config.tasks import build_task
from partita.durable import replace_file
from partita.errors import ConfigError, RunFailed, needed
from partita.methods import registry
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore, labeled
from partita.protocol import Stage
from partita.runs.warnings import failed_stages
from partita.studies import run as runner
from partita.studies.trials import Sampler, SearchSpace, Stopped, Trial, TrialWatcher, Tuned, check_space
from partita.tasks.task import Task
from partita.tasks.validation import without_validation
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

logger = logging.getLogger(__name__)

_VALIDATION = 0.2
"""Share of training rows held out for validation if the config has none."""
_PRETRAINING = ("pretrain.", "model.", "task.", "seed", "personalize.method", "partition.frozen")
"""Keys that change the pretrained model, or whether a run begins from it."""
_START = "start"
"""The folder of the run that pretrains for all trials."""
_SHOWN = 10
"""Devices that a warning lists."""
_CHECKS = 4
"""Evaluations during training, after each of which a trial may be stopped."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A config to tune, and the folder of its trials."""

    values: Mapping[str, Any]
    """The config's values."""
    beside: Path
    """The folder of the config, where files that it names are found."""
    folder: Path
    """The folder that gets one folder per trial."""
    start: Path | None = None
    """A model that all trials begin from, pretrained without the validation rows; None: it is pretrained
    first."""


def begin(values: Mapping[str, Any], beside: Path, space: SearchSpace, trials: int) -> Tuning:
    """Return a tuning in a new folder, after checking that every value of the search space can be tried."""
    check_space(space, trials)
    find_own_code({**values, **space}, beside)
    config = config_of(values)
    _check_free(config.personalize.method, space)
    for key, choices in space.items():
        for choice in choices:
            check_trial(values, beside, {key: choice})
    folder = runner.claim(config, f"{config.name}-tune")
    warn_replaced(values)
    return Tuning(values=values, beside=beside, folder=folder)


def _check_free(method: str, space: SearchSpace) -> None:
    """Raise if the search is over a setting that the method fixes."""
    fixed = {} if "personalize.method" in space else registry.find(method).settings
    for key in space:
        if key in fixed:
            raise ConfigError(f"`{key}` cannot be searched: the method `{method}` sets it to {fixed[key]!r}.")


def check_trial(values: Mapping[str, Any], beside: Path, choice: Mapping[str, Any] | None = None) -> None:
    """Raise if a config with a choice of values cannot be run on validation rows."""
    needed("optuna", by="Tuning", extra="tune")
    build(config_of(_trial_values(values, choice)), beside)


def tune(
    tuning: Tuning,
    space: SearchSpace,
    *,
    trials: int = 0,
    on_progress: OnProgress,
    on_round: RoundCallback = ignore,
) -> Tuned:
    """Run the trials of a search and return their results.

    Args:
        tuning: the config, and the folder of the trials.
        space: the values to try.
        trials: number of trials; 0: every combination.
        on_progress: called with the progress of the search.
        on_round: called with every round, labeled with its trial.

    Raises:
        RunFailed: no trial ran to its end.
    """
    find_own_code({**tuning.values, **space}, tuning.beside)
    config = config_of(_trial_values(tuning.values))
    task, _ = build_task(config, tuning.beside)
    _warn_of_unseen(task, config)
    direction = task.metrics[task.headline].direction
    own = {key: _value_in(config, key) for key in space}
    sampler = Sampler(space, own=own, direction=direction, seed=config.seed, trials=trials)
    start = tuning.start
    if start is None and config.pretrain.rounds and not any(key.startswith(_PRETRAINING) for key in space):
        start = pretrain(tuning, on_progress, on_round)
    done: list[Trial] = []
    for number in range(sampler.trials):
        trial, choice = sampler.next()
        watcher = TrialWatcher(
            trial,
            number,
            sampler.trials,
            on_progress,
            checks=_CHECKS if sampler.stops_early else 0,
            on_round=labeled(on_round, _folder_of(number)),
        )
        done.append(_run_trial(tuning, start, choice, watcher))
        sampler.record(trial, done[-1].value)
    finished = [trial for trial in done if trial.value is not None]
    if not finished:
        raise RunFailed(f"No trial ran to its end: {done[0].status}")
    best = {"up": max, "down": min}[direction](finished, key=lambda trial: trial.value)
    return Tuned(metric=task.headline, trials=done, best=best)


def _warn_of_unseen(task: Task, config: Config) -> None:
    """Log the evaluated devices that have no validation rows: only the final run evaluates them."""
    positions = config.evaluate.positions(len(task.devices), seed=config.seed)
    if unseen := without_validation(task, (task.devices.ids[position] for position in positions)):
        logger.warning(
            "%d of %d devices have no validation rows, so the search does not evaluate them: %s.",
            len(unseen),
            len(positions),
            ", ".join([*unseen[:_SHOWN], *(["..."] if len(unseen) > _SHOWN else [])]),
        )


def _value_in(config: Config, key: str) -> Any:
    """Return the value that a config has for a key."""
    value = value_at(to_values(config), key)
    return config.personalize.shared_lr if value is None and key == "personalize.personal_lr" else value


def write_tuned(tuned: Tuned, tuning: Tuning) -> Path:
    """Write the config with the best values, for a run on all training rows, and return its path."""
    values = with_values(tuning.values, {**tuned.best.choice, "out": None})
    config, folder = config_of(values), tuning.folder.resolve()
    changes: dict[str, Any] = {**relative_to(folder, find_files(config, tuning.beside))}
    if not config.evaluate.choose and config.evaluate.split != "validation":
        changes["task.validation"] = None
    versions = made_with(config, folder) | contents_of(config, tuning.beside)
    values = with_values(values, {**changes, "made_with": versions})
    path = tuning.folder / "tuned.toml"
    replace_file(path, tomli_w.dumps(values).encode())
    return path


def _trial_values(
    values: Mapping[str, Any], choice: Mapping[str, Any] | None = None, *, checks: int = 0
) -> dict[str, Any]:
    """Return the config of a trial: evaluated on validation rows, and so many times during training."""
    own = with_values(values, {**(choice or {}), "compare": None, "out": None})
    config = config_of(own)
    rounds = config.personalize.rounds or config.pretrain.rounds
    changes = {
        "task.validation": config.task.options.get("validation") or _VALIDATION,
        "evaluate.split": "validation",
        "evaluate.choose": "",
        "evaluate.every": max(1, rounds // (checks + 1)) if checks else 0,
        "finetune.baseline": False,
    }
    return with_values(own, changes)


def pretrain(tuning: Tuning, on_progress: OnProgress, on_round: RoundCallback = ignore) -> Path:
    """Pretrain once for all trials, or resume that run, and return the file that trials begin from."""

    def watch(line: RoundRow, done: int, total: int) -> None:
        labeled(on_round, _START)(line, done, total)
        on_progress(0, 1, f"pretraining for all trials, {100 * done // total} %")

    changes = {
        "personalize": {"method": registry.REFERENCE, "rounds": 0},
        "partition": {"personal": "none"},
        "out": str(tuning.folder / _START),
    }
    values = with_values(_trial_values(tuning.values), changes)
    run = runner.prepare_or_resume(config_of(values), tuning.beside)
    runner.finish(run, watch)
    for failure in failed_stages(run.folder):
        raise RunFailed(f"Pretraining for all trials failed: {failure}.")
    return run.folder.shared_file(Stage.PRETRAINED)


def _folder_of(number: int) -> str:
    return f"trial-{number}"


def _run_trial(tuning: Tuning, start: Path | None, choice: Mapping[str, Any], watcher: TrialWatcher) -> Trial:
    """Run one trial and return its result."""
    number = watcher.number
    changes: dict[str, Any] = {"out": str(tuning.folder / _folder_of(number))}
    if start is not None:
        changes |= {"model.start": str(start.resolve()), "model.start_names": None, "pretrain.rounds": 0}
    values = with_values(_trial_values(tuning.values, choice, checks=watcher.checks), changes)
    try:
        summary = runner.finish(runner.prepare(config_of(values), tuning.beside), watcher)
    except (RunFailed, Stopped) as error:
        return Trial(number=number, choice=choice, value=None, status=str(error))
    # A model that has diverged has no metric: neither an earlier stage nor the other devices stand in for it.
    failed = [
        f"`{stage}` failed on {failure['failed']} of {failure['devices']} devices ({failure['reason']})"
        for stage, failure in summary["failed"].items()
    ]
    if failed:
        return Trial(number=number, choice=choice, value=None, status=failed[0])
    last = summary["stages"].get(watcher.stage, {"devices": 0})
    measured = max((stage["devices"] for stage in summary["stages"].values()), default=0)
    if not measured or last["devices"] < measured:
        status = f"{measured - last['devices']} of {measured} devices have no {summary['metric']} at the end"
        return Trial(number=number, choice=choice, value=None, status=status)
    return Trial(number=number, choice=choice, value=last["weighted_mean"], status="done")
