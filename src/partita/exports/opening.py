"""Opening a finished run: its folder, and the task that its models are built from again."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from partita.config.building import build
from partita.config.provenance import find_own_code
from partita.config.reading import read_config
from partita.config.recording import (
    has_task_from_python,
    is_from_python,
    recorded_partition,
    recorded_update,
)
from partita.config.tasks import given_task
from partita.errors import ConfigError
from partita.exports.models import Models, Origin
from partita.partition import Partition, Personalization, personalization_of
from partita.protocol import Stage
from partita.runs.folder import RunFolder
from partita.runs.onboarded import OnboardedRun
from partita.studies.folders import CELLS, check_finished, is_comparison
from partita.studies.resume import RESUMABLE, check_paths, located_files
from partita.tasks.build import initial_model
from partita.tasks.derived import differing
from partita.tasks.task import Task

SKIP_BAD = RESUMABLE
"""The setting that skips bad rows of a table."""


def open_models(path: Path, overrides: Sequence[str] = ()) -> Models:
    """Return the models of the finished run in a folder; nothing in it changes.

    Args:
        path: the run's folder.
        overrides: `key=value` for files that are elsewhere now.

    Raises:
        ConfigError: there is no finished run, it was started in Python, or something else is to change.
    """
    folder = finished_run(path)
    check_paths(overrides)
    return Models(OnboardedRun(folder), partial(origin_of, folder, overrides=overrides))


def finished_run(path: Path) -> RunFolder:
    """Return the folder of a finished run that has its task in its config.

    Raises:
        ConfigError: there is none.
    """
    folder = RunFolder(path)
    if is_comparison(path):
        raise ConfigError(
            f"`{path}` holds a comparison: give the folder of one of its runs, in `{path / CELLS}`."
        )
    folder.check_config()
    if not folder.exists:
        raise ConfigError(f"`{path}` holds no run: it has no `{folder.config_file.name}`.")
    check_finished(folder)
    if has_task_from_python(folder.values):
        raise ConfigError(
            f"The run in `{path}` was started in Python, and no file has its task: take its models with "
            f"`partita.open({str(path)!r}, task=...)`."
        )
    return folder


def origin_of(
    folder: RunFolder,
    task: Task | None = None,
    partition: Partition | Personalization | None = None,
    *,
    overrides: Sequence[str] = (),
    opener: str = "partita.open",
) -> Origin:
    """Return the task and the settings of the run in a folder, which the function `opener` has opened.

    Raises:
        ConfigError: the task was created in Python, and it or the partition is not given.
    """
    values = folder.values
    if has_task_from_python(values):
        task = _checked(task, folder, opener)
    if not is_from_python(values):
        find_own_code(values, folder.path)
        config = located_files(read_config(folder.config_file, overrides), folder.path)
        with given_task(task):
            built = build(config, folder.path)
        training = built.plan.training(Stage.PERSONALIZED)
        return Origin(built.task, built.personalization, config.seed, training and training.method.local)
    assert task is not None
    if partition is None:
        partition = recorded_partition(values, initial_model(task, seed=values["seed"]))
    return Origin(task, personalization_of(partition), values["seed"], recorded_update(values))


def _checked(task: Task | None, folder: RunFolder, opener: str) -> Task:
    """Return the task that is given for a run, which must have the values that the run's derived."""
    if task is None:
        raise ConfigError(
            f"The run in `{folder.path}` was started in Python: to build its models, give its task, "
            f"`{opener}(..., task=...)`."
        )
    if folder.derived and (names := differing(task.derived, folder.derived)):
        raise ConfigError(
            f"`task` has another `{names[0]}` than the run in `{folder.path}`: create it with `derived`, the "
            f"file `{folder.derived_file}`."
        )
    return task
