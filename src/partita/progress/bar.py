"""A progress bar in a terminal or a notebook, and plain lines at intervals elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich import progress as rich_progress
from rich.console import Console
from rich.table import Column

from partita.progress.notebook import notebook_bar
from partita.shown import shown

OnProgress = Callable[[float, int, str], None]
"""A callback for progress: how much is done, the total, and a description of the current step."""
_INTERVAL = 5.0
"""Seconds between plain lines."""
_BAR_WIDTH = 30


class PeriodicPrinter:
    """Prints plain lines, at most one every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._printed: float | None = None

    def print(self, line: str, *, is_last: bool) -> None:
        """Print a line if the interval has passed; the last line always."""
        now = self._clock()
        if is_last or self._printed is None or now - self._printed >= _INTERVAL:
            self._printed = now
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class ProgressBar:
    """Shows the progress of a long task."""

    def __init__(self, console: Console, name: str = "") -> None:
        self._name = name
        self._is_live = console.is_terminal and not console.is_jupyter and not console.quiet
        self._plain = PeriodicPrinter(console)
        self._cell = notebook_bar(console)
        text = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._bar = rich_progress.Progress(
            rich_progress.BarColumn(_BAR_WIDTH),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeRemainingColumn(),
            # Last, and cut where the terminal is too narrow: the text may name several runs.
            rich_progress.TextColumn("{task.description}", markup=False, table_column=text),
            console=console,
            disable=not self._is_live,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if self._cell is not None:
            self._cell.remove()

    def update(self, done: float, total: int, text: str = "") -> None:
        """Show how much is done, with a description of the current step."""
        text = shown(text or self._name)
        self._bar.update(self._task, description=text, completed=done, total=total)
        if self._cell is not None:
            self._cell.update(done, total, f"{int(done)}/{total}", text)
        elif not self._is_live:
            self._plain.print(f"{int(done)}/{total} {text}", is_last=done >= total)
