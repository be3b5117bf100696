"""Errors that a caller can act on."""

import traceback
from importlib import import_module
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """An invalid request; the message is one line that says what would be right."""


class Damaged(ConfigError):
    """A file of a run is not as Partita wrote it; the message names it and says what can be done."""


class InUse(Exception):
    """Another process is writing this run's folder."""


class RunFailed(Exception):
    """The run cannot continue."""


class RankLost(BaseException):
    """Another rank of this run is gone: its process has ended, or its machine is silent.

    Raised during anything that rank 0 is doing, like `KeyboardInterrupt`, and no `Exception` for the same
    reason: code that handles its own errors must not take it for one.
    """


class CannotDo(Exception):
    """A device cannot do its work; the message says why.

    Raised in a loss, or while a device's data is loaded, it is a failure of that device and not of the run.
    """


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with an error: 2 if the request was wrong.

    >>> exit_code(ConfigError("`seed` must be a whole number.")), exit_code(RunFailed("No device replied."))
    (2, 1)
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, ConfigError | InUse) else 1


def described(error: BaseException) -> str:
    """Return an exception on one line: its type, its message, and where user code raised it.

    >>> described(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join(str(error).split())
    places = traceback.extract_tb(error.__traceback__)
    package = Path(__file__).parent
    own = [p for p in places if "site-packages" not in p.filename and package not in Path(p.filename).parents]
    place = (own or places)[-1:]
    where = [f" ({Path(p.filename).name}, line {p.lineno})" for p in place]
    return f"{type(error).__name__}: {text}{''.join(where)}"


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
