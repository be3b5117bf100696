"""The command line: what can be typed, what it does, and what is said when it cannot be done."""

import errno
import logging
import sys
from collections.abc import Sequence

from partita.cli.arguments import parsed
from partita.errors import ConfigError, InUse, RunFailed


class _Errors:
    """The error stream as it is at the moment: a progress display puts itself in its place."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 the run failed, 2 the request was wrong."""
    options = parsed(arguments)
    logging.basicConfig(format="partita: %(message)s", stream=_Errors())
    try:
        return options.command(options)
    except (ConfigError, InUse) as error:
        return _say(2, error)
    except RunFailed as error:
        return _say(1, error)
    except OSError as error:
        if error.errno != errno.ENOSPC and getattr(error, "__notes__", None):
            raise
        return _say(1, error)
    except KeyboardInterrupt as interrupt:
        return _say(130, " ".join(["Interrupted.", *map(str, interrupt.args)]))


def _say(code: int, message: object) -> int:
    print(f"partita: {message}", file=sys.stderr)
    return code
