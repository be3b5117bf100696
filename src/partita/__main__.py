"""`python -m partita`: the command line, also for launchers such as `torchrun -m partita`."""

import os
import signal
import sys
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, with one line: before a command and after it there is nothing to lose.

    An exception would not do: torch imports NumPy from C, which swallows it and leaves NumPy half imported.
    """
    os.write(2, b"partita: Interrupted.\n")
    os._exit(128 + number)


def _open_streams() -> None:
    """Open standard streams that are closed, as by `>&-`: the next file to be opened would be printed to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, this one.


def run() -> int:
    """Run the command line and return its exit code; Ctrl-C or SIGTERM at any moment ends in one line."""
    _open_streams()
    # Where Ctrl-C is ignored, as in a background job, it stays ignored.
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is default:
            signal.signal(number, _leave)
    from partita.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
