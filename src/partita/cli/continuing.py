"""Commands that end before their work is done say what is safe, and how to continue."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from partita.errors import RankLost, RunFailed, TooManyFailed, fault_text, is_fault, is_of_device


@contextmanager
def continued(command: str, folder: Path, *, by: Sequence[str] = ()) -> Iterator[None]:
    """Add the command to continue with to signals, faults of the system and lost devices in this block.

    Args:
        command: the name of the command.
        folder: the folder that it writes.
        by: its arguments, where they are not `--resume FOLDER`.
    """
    arguments = by or ["--resume", str(folder)]
    how = f"esume with `{shlex.join(['partita', command, *arguments])}`."
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.args = (f"R{how}",)
        raise
    except (RankLost, TooManyFailed) as error:
        raise RunFailed(f"{error} R{how}") from None
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_of_task(error):
            raise
        raise RunFailed(
            f"{fault_text(error)} All committed rounds are safe: when the cause is mended, r{how}"
        ) from error


@contextmanager
def missing(files: str, command: str, *, verb: str = "write") -> Iterator[None]:
    """Add the command that writes what a signal or a fault of the system in this block leaves out."""
    only = f"Only {files} missing: {verb} {'it' if files.endswith('is') else 'them'} with `{command}`."
    try:
        yield
    except KeyboardInterrupt as interrupt:
        interrupt.args = (only,)
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunFailed(f"{fault_text(error)} {only}") from error


def is_of_task(error: OSError) -> bool:
    """Return whether an error of the system comes from the code of a device, and is no fault."""
    return not is_fault(error) and bool(getattr(error, "__notes__", None)) and is_of_device(error)
