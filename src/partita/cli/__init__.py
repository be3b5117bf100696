"""The command line: parses arguments, runs a command, and prints errors as one line."""

import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from partita.cli.arguments import parse
from partita.cli.continuing import is_of_task
from partita.cli.signals import interruptible
from partita.errors import ConfigError, InUse, RankLost, RunFailed, exit_code, fault_text, is_fault, one_line
from partita.executors.launch import refuse_ranks
from partita.shown import shown_lines


class _ErrorStream:
    """The current error stream, looked up on every write: a live display replaces `sys.stderr`.

    Characters that cannot be printed are escaped: a message may name a device or a metric.
    """

    def write(self, text: str) -> int:
        return sys.stderr.write(shown_lines(text))

    def flush(self) -> None:
        sys.stderr.flush()


_NO_READER = 141
"""The exit code of a command whose output nobody reads on, as a shell gives it: 128 + SIGPIPE."""


_COMPUTING = (
    "run",
    "compare",
    "tune",
    "report",
    "export",
    "predict",
    "onboard",
    "describe",
    "import",
    "serve",
    "flower",
)
"""The commands that import torch: before Ctrl-C raises an exception, which its C code would swallow."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the run failed, 2 the request was wrong.

    A command that a signal has ended returns 130 (Ctrl-C) or 143 (SIGTERM).
    """
    _print_any_text()
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        if getattr(error, "__notes__", None):  # It comes from the code of a device.
            raise
        _discard_output()
        return _NO_READER
    except OSError as error:
        if is_of_task(error):
            raise
        _discard_output()
        return _print_error(1, f"The output cannot be written: {fault_text(error)}")


def _discard_output() -> None:
    """Print nothing from now on: Python flushes the output again at its end, and that must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_any_text() -> None:
    """Let both streams print, escaped, the characters that the encoding of the locale lacks.

    A stream that was closed before this process began, as by `>&-`, prints nothing.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None) -> int:
    options = parse(arguments)
    logging.basicConfig(format="partita: %(message)s", stream=_ErrorStream())
    try:
        if options.name not in (None, "run"):
            refuse_ranks(options.name)
        if options.name in _COMPUTING:
            import_module("torch")
        with interruptible():
            return options.command(options)
    except (ConfigError, InUse, RunFailed, RankLost) as error:
        return _print_error(exit_code(error), error)
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_of_task(error):
            raise
        again = f" When the cause is mended, give the same command again, `{options.command_line}`."
        return _print_error(1, f"{fault_text(error)}{again if is_fault(error) else ''}")
    except KeyboardInterrupt as interrupt:
        return _print_error(exit_code(interrupt), " ".join(["Interrupted.", *map(str, interrupt.args)]))


def _print_error(code: int, message: object) -> int:
    print(f"partita: {one_line(str(message))}", file=sys.stderr)
    return code
