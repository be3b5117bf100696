"""The task of a comparison or a search: refuses to resume with another one."""

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from partita.config.loading import own_code
from partita.config.schema import Config
from partita.config.tasks import build_task
from partita.errors import ConfigError
from partita.runs.fingerprint import task_fingerprint
from partita.tasks.build import initial_model
from partita.tasks.task import Task


def task_and_model(config: Config, beside: Path) -> tuple[Task, nn.Module]:
    """Return the task of a config, whose files are found `beside` it, and its model."""
    task, _ = build_task(config, beside)
    with own_code("The model"):
        return task, initial_model(task, seed=config.seed)


def fingerprint_in(config: Config, beside: Path) -> dict[str, str]:
    """Return the parts of a config's task that must not change on resume, as strings by name."""
    return task_fingerprint(*task_and_model(config, beside))


def check_same_task(config: Config, folder: Path, recorded: Mapping[str, str]) -> None:
    """Raise if what is to be resumed in a folder was started with another task.

    Args:
        config: the config, with paths from the folder.
        folder: the folder.
        recorded: the fingerprint of the task that it was started with; studies of earlier versions have none.
    """
    now = fingerprint_in(config, folder) if recorded else {}
    if changed := [name for name, text in recorded.items() if now[name] != text]:
        raise ConfigError(
            f"`{folder}` was started with another task: its `{changed[0]}` differs. Resume it with the same "
            "task, or start again in another folder."
        )
