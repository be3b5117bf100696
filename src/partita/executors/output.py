"""Output of a worker process, text, log records and Python warnings, which appears in the parent process."""

import builtins
import io
import logging
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO, TextIO, cast

from partita.executors.messages import send
from partita.executors.processes import send_descriptor
from partita.params import Params

_ENCODING, _ERRORS = "utf-8", "surrogateescape"


class Link:
    """The connection with the parent, which also threads of user code may send over."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(
        self,
        values: Mapping[str, Any],
        descriptor: int | None = None,
        tensors: Mapping[str, Params] | None = None,
    ) -> None:
        """Send a message, and with it a file descriptor where given."""
        with self._lock:
            send(self.connection, values, tensors)
            if descriptor is not None:
                send_descriptor(self.connection, descriptor)


def forward_output(link: Link) -> None:
    """Let this process send all of its output over a link from now on."""
    sys.stdout, sys.stderr = _stream(link, "stdout", 1), _stream(link, "stderr", 2)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.propagate = True
    logging.root.handlers[:] = [_Records(link)]

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        link.send({"warning": [str(message), category.__name__, filename, lineno]})

    warnings.showwarning = show


def _stream(link: Link, name: str, descriptor: int) -> TextIO:
    lines = cast("BinaryIO", _Lines(link, name, descriptor))
    return io.TextIOWrapper(lines, _ENCODING, _ERRORS, newline="", write_through=True)


class _Lines(io.RawIOBase):
    """Bytes of text that are sent line by line, under a text stream like those of any process."""

    def __init__(self, link: Link, name: str, descriptor: int) -> None:
        self._link = link
        self._name = name
        self._descriptor = descriptor
        self._begun = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        lines, end, self._begun = (self._begun + bytes(data)).rpartition(b"\n")
        self._send(lines + end)
        return len(data)

    def flush(self) -> None:
        begun, self._begun = self._begun, b""
        self._send(begun)

    def _send(self, data: bytes) -> None:
        if data:
            self._link.send({"print": [self._name, data.decode(_ENCODING, _ERRORS)]})


class _Records(logging.Handler):
    """A handler that sends log records."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            self._link.send({"log": [record.name, record.levelno, record.pathname, record.lineno, text]})
        except Exception:
            self.handleError(record)


class Replay:
    """Shows the output of workers in this process."""

    def __init__(self) -> None:
        self._warned: dict[Any, Any] = {}

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Show what one message has brought."""
        match values:
            case {"print": [stream, text]}:
                getattr(sys, stream).write(text)
            case {"log": [name, level, path, line, text]}:
                logging.getLogger(name).handle(
                    logging.LogRecord(name, level, path, line, "%s", (text,), None)
                )
            case {"warning": [message, category, path, line]}:
                kind = getattr(builtins, category, UserWarning)
                warnings.warn_explicit(message, kind, path, line, registry=self._warned)
            case _:
                raise ValueError(f"A worker sent what it should not: {sorted(values)!r}.")
