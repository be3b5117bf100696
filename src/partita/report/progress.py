"""Progress of long work: a bar with the time left in a terminal, a plain line now and then elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console

from partita.evaluation import Row
from partita.protocol import Stage

Tick = Callable[[float, int, str], None]
"""Told how much is done, of how much, and what is being done."""
_SECONDS = 5.0
"""Between plain lines."""
_DOING = {
    Stage.PRETRAINED: "pretraining",
    Stage.PERSONALISED: "personalising",
    Stage.FINETUNED: "finetuning",
}


class Work:
    """Shows how much of something is done."""

    def __init__(self, console: Console, name: str = "") -> None:
        self._name = name
        self._console = console
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._said = 0.0

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
        if self._console.is_terminal or (time.monotonic() - self._said < _SECONDS and done < total):
            return
        self._said = time.monotonic()
        self._console.print(f"{int(done)}/{total} {text}", highlight=False, soft_wrap=True)

    def watch(self, line: Row, done: int, total: int) -> None:
        """Show that a round of a run has ended."""
        which = f"{line['run']} baseline, " if "run" in line else ""
        doing = f"{_DOING[line['stage']]}, round {line['round'] + 1}"
        if line["work"] == "evaluate":
            doing = f"evaluating the {line['stage']} model"
        loss = "" if line["loss"] is None else f", loss {line['loss']:.4f}"
        self.tick(done, total, f"{which}{doing}{loss}")
