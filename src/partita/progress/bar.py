"""Progress of long work: a bar with the time left in a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console

Tick = Callable[[float, int, str], None]
"""Told how much is done, of how much, and what is being done."""
_SECONDS = 5.0
"""Between plain lines."""


class NowAndThen:
    """Prints plain lines, not more often than every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._said: float | None = None

    def say(self, line: str, *, is_last: bool) -> None:
        """Print a line where it is time for one, and the last one in any case."""
        now = self._clock()
        if is_last or self._said is None or now - self._said >= _SECONDS:
            self._said = now
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Work:
    """Shows how much of something is done."""

    def __init__(self, console: Console, name: str = "") -> None:
        self._name = name
        self._is_live = console.is_terminal and not console.quiet
        self._plain = NowAndThen(console)
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not self._is_live,
            transient=True,
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

    def tick(self, done: float, total: int, text: str = "") -> None:
        """Show how much is done, and what is being done."""
        text = text or self._name
        self._bar.update(self._task, description=text, completed=done, total=total)
        if not self._is_live:
            self._plain.say(f"{int(done)}/{total} {text}", is_last=done >= total)
