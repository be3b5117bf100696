"""Errors that a caller can act on."""

import difflib
import errno
import os
import signal
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from traceback import FrameSummary
from typing import Any

_PACKAGE = Path(__file__).parent
_STORAGE = {_PACKAGE / "durable.py", _PACKAGE / "device" / "store.py", _PACKAGE / "reuse" / "kept_rows.py"}
_STANDARD = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")


class ConfigError(ValueError):
    """An invalid request; the message is one line that says what would be right."""


class Damaged(ConfigError):
    """A file of a run is not as Partita wrote it; the message names it and says what can be done."""


class InUse(Exception):
    """Another process is writing a file or folder, which is left as it is.

    Args:
        written: the file or folder, in words.
    """

    def __init__(self, written: str) -> None:
        super().__init__(
            f"Another process is writing {written}. Nothing was changed by this command: give it again when "
            "the other one has ended."
        )


class RunFailed(Exception):
    """The run cannot continue."""


class TooManyFailed(RunFailed):
    """More devices failed in training than the run allows; it can be resumed."""


class RankLost(BaseException):
    """Another rank of this run is gone: its process has ended, or its machine is silent.

    Raised during anything that rank 0 is doing, like `KeyboardInterrupt`, and no `Exception` for the same
    reason: code that handles its own errors must not take it for one.
    """


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, which is treated like Ctrl-C."""


class CannotDo(Exception):
    """A device cannot do its work; the message says why.

    Raised in a loss, or while a device's data is loaded, it is a failure of that device and not of the run.
    """


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with an error: 2 if the request was wrong.

    >>> exit_code(ConfigError("`seed` must be a whole number.")), exit_code(RunFailed("No device replied."))
    (2, 1)

    After a signal it is that of a shell, 128 and the signal's number:

    >>> exit_code(KeyboardInterrupt()), exit_code(Terminated())
    (130, 143)
    """
    if isinstance(error, KeyboardInterrupt):
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    return 2 if isinstance(error, ConfigError | InUse) else 1


def described(error: BaseException) -> str:
    """Return an exception on one line: its type, its message, and where user code raised it.

    >>> described(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{_headline(error)}{place_of(error)}"


def explained(error: BaseException) -> str:
    """Return the same as a sentence, with the device and the round where that is known."""
    notes = getattr(error, "__notes__", ())
    return " ".join([f"{_headline(error)}.", *notes]) if notes else f"{described(error)}."


def place_of(error: BaseException) -> str:
    """Return the innermost line of user code that raised an exception, in parentheses after a space.

    Where no line is outside of Partita, the standard library and installed packages, it is the innermost one
    outside of Partita and torch, and otherwise the innermost one.
    """
    places = traceback.extract_tb(error.__traceback__)
    others = [p for p in places if not _is_within(p, _PACKAGE) and "torch" not in Path(p.filename).parts]
    own = [p for p in others if not _is_library(p)]
    place = (own or others or places)[-1:]
    return "".join(f" ({Path(p.filename).name}, line {p.lineno})" for p in place)


def is_of_device(error: Exception) -> bool:
    """Return whether an exception comes from a device's code or data, not from Partita or its storage.

    >>> is_of_device(ConfigError("`seed` must be a whole number."))
    False
    """
    if isinstance(error, ConfigError | RunFailed):
        return False
    places: Sequence[FrameSummary] = traceback.extract_tb(error.__traceback__)
    if any(Path(place.filename) in _STORAGE for place in places):
        return False
    return any(not _is_within(p, _PACKAGE) and (_is_installed(p) or not _is_library(p)) for p in places)


def _headline(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _is_within(place: FrameSummary, folder: Path) -> bool:
    return folder in Path(place.filename).parents


def _is_installed(place: FrameSummary) -> bool:
    return any(name in Path(place.filename).parts for name in _INSTALLED)


def _is_library(place: FrameSummary) -> bool:
    return _is_installed(place) or _is_within(place, _STANDARD) or place.filename.startswith("<frozen")


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE)
_BROKEN = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV)


def is_fault(error: BaseException) -> bool:
    """Return whether an error comes from the machine, not from a request or from code.

    Examples are a full disk, one that cannot be read or written, and too many open files.

    >>> is_fault(OSError(errno.ENOSPC, "No space left on device")), is_fault(FileNotFoundError(2, "x"))
    (True, False)
    """
    return isinstance(error, OSError) and error.errno in (*_FULL, *_BROKEN)


def ends_study(error: BaseException) -> bool:
    """Return whether an error in one run of a study ends the study, because the other runs would fail too.

    These are the machine's faults, and files of the study that this process may not write.
    """
    return is_fault(error) or (isinstance(error, PermissionError) and not is_of_device(error))


def raise_fault(error: Exception, path: Path) -> None:
    """Raise an error again, with the file's name, if it is the machine's fault and not the file's."""
    if isinstance(error, OSError) and is_fault(error):
        error.filename = error.filename or str(path)
        raise error


def fault_text(error: OSError) -> str:
    """Return an error of the system as a sentence, with the name of the file if it is known.

    >>> fault_text(OSError(errno.EIO, "Input/output error", "run/commit.json"))
    'Input/output error: `run/commit.json`.'
    """
    reason = os.strerror(error.errno) if error.errno else one_line(str(error)).rstrip(".")
    files = [str(file) for file in (file_of(error), error.filename2) if file is not None]
    return f"{reason}: {', '.join(f'`{file}`' for file in files)}." if files else f"{reason}."


def file_of(error: OSError) -> str | None:
    """Return the file that an error of the system is about, None where that is not known.

    Errors of opening a file name it. Those of reading and writing do not: it is the path in the innermost
    function that has one, such as `Path.read_bytes`.
    """
    if error.filename is not None:
        return str(error.filename)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for name in ("self", "path", "file"):
            if isinstance(found := frame.f_locals.get(name), Path):
                return str(found)
    return None


def one_line(text: str) -> str:
    r"""Return a text as one line that shows on any terminal: line breaks as spaces, control codes escaped.

    >>> print(one_line("a\n  b\x1b\ud800 é"))
    a b\x1b\ud800 é
    """
    words = " ".join(line.strip() for line in text.strip().split("\n"))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)


def did_you_mean(value: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a question about the most similar name, after a space; empty if none is similar.

    >>> did_you_mean("sise", ["size", "label"])
    ' Did you mean `size`?'
    """
    near = difflib.get_close_matches(value, list(known), n=1)
    return f" Did you mean `{prefix}{near[0]}`?" if near else ""


def near_file(missing: Path, folders: Iterable[Path]) -> str:
    """Return a question about a file in some folders with a similar name; empty if there is none."""
    files = [file for folder in folders if os.access(folder, os.R_OK) for file in folder.iterdir()]
    near = [file.stem for file in files if file.suffix == missing.suffix]
    found = difflib.get_close_matches(missing.stem, near, n=1)
    return f" Did you mean `{found[0]}{missing.suffix}`?" if found else ""


def shortened(value: object, length: int = 80) -> str:
    """Return the `repr` of a value for a message, with the beginning and the end of a long one.

    >>> shortened("x"), shortened("0123456789" * 100, length=12)
    ("'x'", "'01234 ... 56789'")
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # Nested very deeply, or a number of very many digits.
        return f"a {type(value).__name__} that is too large to show"
    half = length // 2
    return text if len(text) <= length else f"{text[:half]} ... {text[-half:]}"


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
