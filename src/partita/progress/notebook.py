"""A progress bar in the output of a notebook cell, with the browser's own element, so no widget is needed."""

import html
import time
from collections.abc import Callable

from rich.console import Console

_INTERVAL = 0.2
"""Seconds between two drawings."""


class NotebookBar:
    """Draws a bar with a text below it, and removes both at the end.

    Args:
        show: replaces the HTML that is shown; by default in the output of the notebook's current cell.
        clock: the time in seconds.
    """

    def __init__(
        self, show: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show or _cell_output()
        self._clock = clock
        self._drawn: float | None = None

    def update(self, done: float, total: int, counted: str, text: str) -> None:
        """Draw how much is done, a few times per second at most, and always at the end."""
        now = self._clock()
        if done < total and self._drawn is not None and now - self._drawn < _INTERVAL:
            return
        self._drawn = now
        bar = f'<progress value="{done:.2f}" max="{total}"></progress>'
        self._show(f"<div>{bar} {html.escape(counted)}<br>{html.escape(text)}</div>")

    def remove(self) -> None:
        """Show nothing any more."""
        self._show("")


def notebook_bar(console: Console) -> NotebookBar | None:
    """Return a bar for a console in a notebook, None elsewhere and if the console is quiet."""
    return NotebookBar() if console.is_jupyter and not console.quiet else None


def _cell_output() -> Callable[[str], None]:
    """Return a function that replaces the HTML at this place of the current cell's output."""
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    assert handle is not None
    return lambda text: handle.update(HTML(text))
