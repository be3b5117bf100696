"""Progress of runs and studies that are started in Python, on the error stream or in a notebook."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from partita.progress.bar import OnProgress, ProgressBar
from partita.progress.display import Display
from partita.training.journal import RoundRow
from partita.training.pipeline import RoundCallback


@contextmanager
def run_progress(progress: bool | None, watch: RoundCallback | None) -> Iterator[RoundCallback]:
    """Yield a callback for the rounds of a run that shows its progress, if wanted, and calls `watch`.

    Args:
        progress: whether progress is shown; None: only where somebody watches and `watch` is not given.
        watch: called after every round too.
    """
    with Display(_console(progress, by_default=watch is None)) as display:

        def both(line: RoundRow, done: int, total: int) -> None:
            display.watch(line, done, total)
            if watch is not None:
                watch(line, done, total)

        yield both


@contextmanager
def study_progress(progress: bool | None) -> Iterator[OnProgress]:
    """Yield a callback for the progress of a comparison or a search, shown as in `run_progress`."""
    with ProgressBar(_console(progress)) as bar:
        yield bar.update


def _console(progress: bool | None, *, by_default: bool = True) -> Console:
    """Return the error stream, quiet if no progress is wanted, or by default if nobody would see it."""
    console = Console(stderr=True)
    if progress is None:
        progress = by_default and (console.is_terminal or console.is_jupyter)
    console.quiet = not progress
    return console
