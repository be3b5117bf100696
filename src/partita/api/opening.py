"""Opening a finished run: `open` reads its folder and builds its task again when a model is asked for."""

from functools import partial
from pathlib import Path

from partita.api.result import Origin, Result
from partita.config.building import build
from partita.config.reading import read_config
from partita.config.recording import has_task_from_python, is_from_python, recorded_partition
from partita.config.tasks import given_task
from partita.errors import ConfigError
from partita.partition import Partition, Personalization, personalization_of
from partita.runs.checking import refuse
from partita.runs.folder import RunFolder
from partita.studies.folders import is_comparison
from partita.tasks.build import initial_model
from partita.tasks.derived import differing
from partita.tasks.task import Task


def open(
    path: str | Path, *, task: Task | None = None, partition: Partition | Personalization | None = None
) -> Result:
    """Return the result of the finished run in a folder.

    A run from a config builds its task again when a model is first asked for. For a run that was started in
    Python, give its task; and its partition too where the names of the tensors do not say everything
    (adapters, `full`, regularization, personal parts that differ by device).

    Args:
        path: the run's folder.
        task: the task of a run that was started in Python.
        partition: its partition.

    Raises:
        ConfigError: the folder holds no finished run.
    """
    folder = RunFolder(path)
    if is_comparison(folder.path):
        raise ConfigError(f"`{folder.path}` holds a comparison: open it with `partita.open_comparison`.")
    if not folder.is_finished:
        raise ConfigError(f"`{folder.path}` holds no finished run.")
    _ = folder.values  # It raises if the config is damaged.
    refuse(list(folder.recorded.problems(is_finished=True)), folder.path)
    return Result(folder, partial(_origin_of, folder, task, partition))


def open_cell(path: Path, task: Task | None) -> Result:
    """Return the result of a finished run of a comparison, whose task `partita.open_comparison` was given."""
    folder = RunFolder(path)
    return Result(folder, partial(_origin_of, folder, task, opener="partita.open_comparison"))


def _origin_of(
    folder: RunFolder,
    task: Task | None,
    partition: Partition | Personalization | None = None,
    *,
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
        config = read_config(folder.config_file)
        with given_task(task):
            built = build(config, folder.path)
        return Origin(built.task, built.personalization, config.seed)
    assert task is not None
    if partition is None:
        partition = recorded_partition(values, initial_model(task, seed=values["seed"]))
    return Origin(task, personalization_of(partition), values["seed"])


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
