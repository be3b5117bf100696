"""Warnings and errors of other ranks, as JSON values: rank 0 logs and raises them as if they were its own."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from partita.data.rows import BadData
from partita.errors import ConfigError, RunFailed, described

_KINDS: Mapping[str, type[Exception]] = {kind.__name__: kind for kind in (BadData, ConfigError, RunFailed)}
"""The errors that rank 0 raises as they are."""


class Collected(logging.Handler):
    """Keeps warnings for rank 0 instead of printing them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._values: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning."""
        self._values.append(
            {
                "logger": record.name,
                "level": record.levelno,
                "template": str(record.msg),
                "text": record.getMessage(),
            }
        )

    def take(self) -> list[dict[str, Any]]:
        """Return the warnings since the last call."""
        values, self._values = self._values, []
        return values

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Collect all warnings in this block, those of Python's `warnings` too."""
        root = logging.getLogger()
        before, root.handlers = root.handlers, [self]
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.handlers = before


class Once(logging.Filter):
    """Lets a warning pass only from the first rank that gives it, if several ranks give the same one.

    The same are two warnings that differ in their arguments alone, such as the device that they name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is the first of its kind, or from the same rank as the first."""
        rank = getattr(record, "rank", 0)
        key = record.name, getattr(record, "template", str(record.msg))
        with self._lock:
            return self._owners.setdefault(key, rank) == rank

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Filter the warnings of this process in this block."""
        handlers = list(logging.getLogger().handlers)
        for handler in handlers:
            handler.addFilter(self)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(self)


def log_notices(values: Sequence[Mapping[str, Any]], rank: int) -> None:
    """Log the warnings that another rank has collected."""
    for each in values:
        about = {"rank": rank, "template": each["template"]}
        logging.getLogger(each["logger"]).log(each["level"], "%s", each["text"], extra=about)


def error_values(error: Exception) -> dict[str, str]:
    """Return what rank 0 must know of an error in a visit."""
    kind = next((name for name, kind in _KINDS.items() if type(error) is kind), "")
    notes = " ".join(getattr(error, "__notes__", ()))
    return {"error": kind, "text": str(error) if kind else f"{described(error)}.", "notes": notes}


def error_of(values: Mapping[str, str], where: str) -> Exception:
    """Return the error with these values; `where` names the rank."""
    kind = _KINDS.get(values["error"], RunFailed)
    text = " ".join(filter(None, (values["text"], values["notes"])))
    return kind(f"{text.removesuffix('.')}, on {where}.")
