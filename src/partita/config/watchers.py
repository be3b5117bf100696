"""The watchers that a config names, and TensorBoard: looked for before a run begins."""

import inspect
from pathlib import Path
from typing import cast

from partita.config.imports import load
from partita.config.schema import ReportConfig
from partita.errors import ConfigError
from partita.progress.tensorboard import check_tensorboard
from partita.progress.watchers import WatcherFactory

_WANTED = "must be a function of a run's folder and its config"


def build_watchers(config: ReportConfig) -> dict[str, WatcherFactory]:
    """Return what makes each watcher, by its import path.

    Raises:
        ConfigError: one cannot be made, or TensorBoard is wanted and not there.
    """
    if config.tensorboard:
        check_tensorboard()
    return {path: _maker(path) for path in config.watchers}


def _maker(path: str) -> WatcherFactory:
    make = load("report.watchers", path, {})
    if not callable(make):
        raise ConfigError(f"`report.watchers`: {path!r} {_WANTED}, got {make!r}.")
    try:
        inspect.signature(make).bind(Path(), {})
    except TypeError as error:
        raise ConfigError(f"`report.watchers`: {path!r} {_WANTED}: {error}.") from None
    except ValueError:  # Some built-in functions have no signature to look at.
        pass
    return cast(WatcherFactory, make)
