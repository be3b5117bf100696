"""Searching for settings on validation rows; test rows are never read.

Every trial is a run with its own folder. Unless the search changes a setting of pretraining, all trials begin
from one pretrained model. A trial that is among the worst third of those before it is stopped early.

An interrupted search is resumed trial by trial and round by round. The choice of the next values depends on
all trials before it, so the rounds and results in the folder are taken note of again, in their order.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from partita.config.changes import value_at, with_values
from partita.config.files import check_unchanged
from partita.config.provenance import find_own_code
from partita.config.reading import config_of, to_values
from partita.config.schema import Config
from partita.config.tasks import build_task
from partita.durable import locked, replace_file
from partita.errors import ConfigError, InUse, RunFailed
from partita.methods import registry
from partita.progress.bar import OnProgress
from partita.progress.watchers import ignore, labeled
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.warnings import divergence, failed_stages
from partita.studies import run as runner
from partita.studies.same_task import check_same_task
from partita.studies.statistics import DeviceMetrics, paired_difference
from partita.studies.trials import (
    Sampler,
    Stopped,
    Trial,
    TrialWatcher,
    Tuned,
    warn_of_ends,
)
from partita.studies.tuning import Tuning, folder_of, trial_config, trial_values
from partita.tasks.metrics import Direction
from partita.tasks.task import Task
from partita.tasks.validation import without_validation
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback

logger = logging.getLogger(__name__)

_PRETRAINING = ("pretrain.", "model.", "task.", "seed", "personalize.method", "partition.frozen")
"""Keys that change the pretrained model, or whether a run begins from it."""
_START = "start"
"""The folder of the run that pretrains for all trials."""
_SHOWN = 10
"""Devices that a warning lists."""
_CHECKS = 4
"""Evaluations during training, after each of which a trial may be stopped."""


def tune(tuning: Tuning, *, on_progress: OnProgress, on_round: RoundCallback = ignore) -> Tuned:
    """Run the trials of a search that are left and return the results of all.

    Args:
        tuning: the config, the values to try, and the folder of the trials.
        on_progress: called with the progress of the search.
        on_round: called with every round, labeled with its trial.

    Raises:
        RunFailed: no trial ran to its end.
    """
    find_own_code({**tuning.values, **tuning.space}, tuning.beside)
    with locked(tuning.folder) as is_ours:
        if not is_ours:
            raise InUse(f"Another process is running the search in `{tuning.folder}`.")
        return _tune(tuning, on_progress, on_round)


def _tune(tuning: Tuning, on_progress: OnProgress, on_round: RoundCallback) -> Tuned:
    config, space = trial_config(tuning.values), tuning.space
    check_unchanged(config, tuning.beside, "search")
    check_same_task(config, tuning.beside, tuning.fingerprint)
    task, _ = build_task(config, tuning.beside)
    _warn_of_unmeasured(task, config)
    direction = task.metrics[task.headline].direction
    own = {key: _value_in(config, key) for key in space}
    sampler = Sampler(space, own=own, direction=direction, seed=config.seed, trials=tuning.trials)
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
            on_round=labeled(on_round, folder_of(number)),
        )
        done.append(_finish_trial(tuning, start, choice, watcher))
        sampler.record(trial, done[-1].value)
    finished = [trial for trial in done if trial.value is not None]
    if not finished:
        raise RunFailed(f"No trial ran to its end: {done[0].status}")
    best = {"up": max, "down": min}[direction](finished, key=lambda trial: trial.value)
    warnings = [*warn_of_ends(done, best), *_warn_of_equals(tuning, finished, best, direction)]
    return Tuned(metric=task.headline, trials=done, best=best, warnings=warnings)


def _warn_of_equals(
    tuning: Tuning, finished: Sequence[Trial], best: Trial, direction: Direction
) -> Iterator[str]:
    """Yield a sentence if some trials differ from the best by no more than the standard error."""
    own, near = _metrics(tuning, best), list[str]()
    for trial in finished:
        pair = paired_difference([own], [_metrics(tuning, trial)], direction)
        if trial != best and pair and pair.standard_error is not None and pair.value <= pair.standard_error:
            near.append(f"{trial.number} ({pair.value:.4f}, standard error {pair.standard_error:.4f})")
    if near:
        yield (
            "These trials are worse than the best by no more than the standard error of the difference, "
            f"paired over devices: {', '.join(near)}."
        )


def _metrics(tuning: Tuning, trial: Trial) -> DeviceMetrics:
    """Return the metric and the weight of each device after the last stage of a finished trial."""
    run = RunFolder(tuning.folder / folder_of(trial.number))
    last = list(run.summary["stages"])[-1]
    rows = run.devices.select(["stage", "device", "split", "metric", "weight"]).to_pylist()
    own = [row for row in rows if (row["stage"], row["split"]) == (last, "validation")]
    return {row["device"]: (row["metric"], row["weight"]) for row in own if row["metric"] is not None}


def _warn_of_unmeasured(task: Task, config: Config) -> None:
    """Log the evaluated devices that have no validation rows: only the final run evaluates them."""
    seen, _ = config.evaluate.divide(task.devices.ids)
    positions = config.evaluate.positions(len(seen), seed=config.seed)
    if lacking := without_validation(task, (seen[position] for position in positions)):
        logger.warning(
            "%d of %d devices have no validation rows, so the search does not evaluate them: %s.",
            len(lacking),
            len(positions),
            ", ".join([*lacking[:_SHOWN], *(["..."] if len(lacking) > _SHOWN else [])]),
        )


def _value_in(config: Config, key: str) -> Any:
    """Return the value that a config has for a key."""
    value = value_at(to_values(config), key)
    return config.personalize.shared_lr if value is None and key == "personalize.personal_lr" else value


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
    values = with_values(trial_values(tuning.values), changes)
    run = runner.prepare_or_resume(config_of(values), tuning.beside)
    runner.finish(run, watch)
    for failure in failed_stages(run.folder):
        raise RunFailed(f"Pretraining for all trials failed: {failure}.")
    return run.folder.shared_file(Stage.PRETRAINED)


def _finish_trial(
    tuning: Tuning, start: Path | None, choice: Mapping[str, Any], watcher: TrialWatcher
) -> Trial:
    """Return the result of a trial, which is written to the folder of the search once the trial has ended."""
    path = tuning.folder / f"{folder_of(watcher.number)}.json"
    with suppress(FileNotFoundError):
        trial = Trial(**json.loads(path.read_bytes()))
        if trial.choice != choice:
            raise ConfigError(f"`{path}` has other values than this search tries next: {dict(choice)}.")
        with suppress(Stopped):
            watcher.replay(_committed(tuning, watcher.number))
        return trial
    trial = _run_trial(tuning, start, choice, watcher)
    replace_file(path, json.dumps(asdict(trial), indent=1).encode())
    return trial


def _committed(tuning: Tuning, number: int) -> Iterator[RoundRow]:
    """Yield the lines of the rounds that a trial has committed."""
    yield from RunFolder(tuning.folder / folder_of(number)).committed_rounds()


def _run_trial(tuning: Tuning, start: Path | None, choice: Mapping[str, Any], watcher: TrialWatcher) -> Trial:
    """Run one trial, or what is left of it, and return its result."""
    number = watcher.number
    changes: dict[str, Any] = {"out": str(tuning.folder / folder_of(number))}
    if start is not None:
        changes |= {"model.start": str(start.resolve()), "model.start_names": None, "pretrain.rounds": 0}
    values = with_values(trial_values(tuning.values, choice, checks=watcher.checks), changes)
    try:
        watcher.replay(_committed(tuning, number))
        summary = runner.finish(runner.prepare_or_resume(config_of(values), tuning.beside), watcher)
    except (RunFailed, Stopped) as error:
        return Trial(number=number, choice=choice, value=None, status=str(error))
    # A model that has diverged has no metric: neither an earlier stage nor the other devices stand in for it.
    run = RunFolder(tuning.folder / folder_of(number))
    if failed := [*failed_stages(run), *divergence(run)]:
        return Trial(number=number, choice=choice, value=None, status=failed[0])
    last = summary["stages"].get(watcher.stage, {"devices": 0})
    measured = max((stage["devices"] for stage in summary["stages"].values()), default=0)
    if not measured or last["devices"] < measured:
        status = f"{measured - last['devices']} of {measured} devices have no {summary['metric']} at the end"
        return Trial(number=number, choice=choice, value=None, status=status)
    return Trial(number=number, choice=choice, value=last["weighted_mean"], status="done")
