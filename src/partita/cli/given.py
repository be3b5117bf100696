"""The config, the files and the settings among the arguments of a command."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path


def config_of(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the path of the config, by default the quickstart's, and the overrides."""
    quickstart = Path(str(resources.files("partita") / "quickstart.toml"))
    if arguments and "=" not in arguments[0]:
        return Path(arguments[0]), list(arguments[1:])
    return quickstart, list(arguments)


def split_settings(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that are no settings, and those that are; a device or a file may have a `=` too.

    >>> split_settings(["a=b", "out", "task.data=rows.parquet"])
    (['a=b', 'out'], ['task.data=rows.parquet'])
    """
    settings = [text for text in arguments if "=" in text and text.startswith(("task.", "model."))]
    return [text for text in arguments if text not in settings], settings
