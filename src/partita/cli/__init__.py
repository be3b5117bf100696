"""The command line: parses arguments, runs a command, and prints errors as one line."""

import errno
import logging
import os
import sys
from collections.abc import Sequence

from partita.cli.arguments import parse
from partita.errors import ConfigError, InUse, RankLost, RunFailed, exit_code
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the run failed, 2 the request was wrong."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError as error:
        if getattr(error, "__notes__", None):  # It comes from the code of a device.
            raise
        # Python flushes the output again at its end: that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NO_READER


def _run(arguments: Sequence[str] | None) -> int:
    options = parse(arguments)
    logging.basicConfig(format="partita: %(message)s", stream=_ErrorStream())
    try:
        if options.name not in (None, "run"):
            refuse_ranks(options.name)
        return options.command(options)
    except (ConfigError, InUse, RunFailed, RankLost) as error:
        return _print_error(exit_code(error), error)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC and getattr(error, "__notes__", None):
            raise
        return _print_error(1, error)
    except KeyboardInterrupt as interrupt:
        return _print_error(exit_code(interrupt), " ".join(["Interrupted.", *map(str, interrupt.args)]))


def _print_error(code: int, message: object) -> int:
    print(shown_lines(f"partita: {message}"), file=sys.stderr)
    return code
