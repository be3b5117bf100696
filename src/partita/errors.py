"""Errors that a caller can act on."""

from importlib import import_module
from typing import Any


class ConfigError(ValueError):
    """An invalid request; the message is one line that says what would be right."""


class InUse(Exception):
    """Another process is writing this run's folder."""


class RunFailed(Exception):
    """The run cannot continue."""


class CannotDo(Exception):
    """A device cannot do its work; the message says why.

    Raised in a loss, or while a device's data is loaded, it is a failure of that device and not of the run.
    """


def needed(module: str, *, by: str, extra: str) -> Any:
    """Return an optional package, or raise an error that names the feature and the install command.

    >>> needed("nonesuch", by="`partita import icons`", extra="import")
    Traceback (most recent call last):
        ...
    partita.errors.ConfigError: `partita import icons` needs nonesuch: pip install 'partita[import]'.
    """
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"{by} needs {module}: pip install 'partita[{extra}]'.") from None
