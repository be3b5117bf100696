"""Folders of runs, comparisons and searches: which is which, and how each is resumed."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partita.config.recording import has_task_from_python
from partita.errors import ConfigError, Damaged
from partita.runs.folder import RunFolder
from partita.seals import missing, unsealed_text

COMPARISON_FILE = "comparison.json"
"""The cells of a comparison and the methods that it compares, resolved when it begins."""
CELLS = "cells"
"""The folder of a comparison's runs."""
SEARCH_FILE = "search.json"
"""The search space and the number of trials of a search, in its folder."""


def is_comparison(folder: Path) -> bool:
    """Return whether a folder holds a comparison."""
    return (folder / "config.toml").is_file() and (folder / COMPARISON_FILE).is_file()


def check_recorded(values: Mapping[str, Any], folder: Path, kind: str) -> None:
    """Raise if the config in a folder is not one that a comparison or a search has written."""
    if not isinstance(values.get("made_with"), Mapping):
        raise ConfigError(
            f"`{folder / 'config.toml'}` has no section [made_with]: it is not the file that the {kind} "
            f"wrote. Restore that file, or start a new {kind}."
        )


def is_search(folder: Path) -> bool:
    """Return whether a folder holds a search."""
    return (folder / "config.toml").is_file() and (folder / SEARCH_FILE).is_file()


def check_is_run(folder: Path) -> None:
    """Raise if a folder that is to be resumed as a run holds a comparison or a search."""
    for kind, is_held in (("comparison", is_comparison(folder)), ("search", is_search(folder))):
        if is_held:
            raise ConfigError(f"`{folder}` holds a {kind}, not a run: resume it {how_to_resume(folder)}.")


def check_sealed(config: Path) -> None:
    """Raise if the config in a folder is damaged, or was written by another version of Partita."""
    try:
        content = config.read_bytes()
    except FileNotFoundError:
        raise missing(config) from None
    if unsealed_text(config, content) is None:
        raise Damaged(
            f"`{config}` has no sha256: it is damaged, or an earlier version of Partita has written it."
        )


def check_finished(run: RunFolder) -> None:
    """Raise if a folder holds no finished run that a report could be about."""
    if is_search(run.path):
        raise ConfigError(
            f"`{run.path}` holds a search, which has no report: give the folder of a trial, such as "
            f"`{run.path / 'trial-0'}`, or of a run with the best values."
        )
    if not run.is_finished:
        raise ConfigError(f"The run in `{run.path}` is not finished: resume it {how_to_resume(run.path)}.")


def how_to_resume(folder: Path) -> str:
    """Return how a run, a comparison or a search is resumed, as the end of a sentence."""
    if has_task_from_python(RunFolder(folder).values):
        return "in Python, with the same arguments and `resume=True`"
    command = "compare" if is_comparison(folder) else "tune" if is_search(folder) else "run"
    return f"with `{shlex.join(['partita', command, '--resume', str(folder)])}`"


def not_a(kind: str, folder: Path, file: str) -> ConfigError:
    """Return the error about a folder without the file of a comparison or a search."""
    without = f"`{folder}` is not the folder of a {kind}: it has no `{file}`."
    if RunFolder(folder).exists or not folder.is_dir():
        return ConfigError(without)
    again = shlex.quote(f"out={folder}")
    return ConfigError(f"{without} One that was stopped before it began is started again with `{again}`.")
