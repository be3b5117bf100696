"""Opening a finished run: `open` reads its folder and builds its task again when a model is asked for."""

from functools import partial
from pathlib import Path

from partita.api.result import Result
from partita.errors import ConfigError
from partita.exports.opening import origin_of
from partita.partition import Partition, Personalization
from partita.runs.checking import refuse
from partita.runs.folder import RunFolder
from partita.studies.folders import is_comparison
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
    return Result(folder, partial(origin_of, folder, task, partition))


def open_cell(path: Path, task: Task | None) -> Result:
    """Return the result of a finished run of a comparison, whose task `partita.open_comparison` was given."""
    folder = RunFolder(path)
    return Result(folder, partial(origin_of, folder, task, opener="partita.open_comparison"))
