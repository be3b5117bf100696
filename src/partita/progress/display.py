"""Where a run stands: lines that are renewed in a terminal, a plain line now and then elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from partita.progress.bar import NowAndThen
from partita.protocol import Stage
from partita.training.evaluation import DeviceRow as Row

_LOOKED_AT = 30
"""Of how many rounds the speed is taken, the last ones."""
_BAR = 30
DOING = {
    Stage.PRETRAINED: "pretraining",
    Stage.PERSONALISED: "personalizing",
    Stage.FINETUNED: "finetuning",
}
"""What is done in the stage that ends with a model."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run stands after a round."""

    run: str = ""
    """Which run, where it is not the one that was asked for."""
    stage: str = ""
    work: str = ""
    round: int = 0
    """How many rounds of the stage are done."""
    rounds: int = 0
    """How many rounds the stage has."""
    loss: float | None = None
    """Of the stage's last training round."""
    hurt: int = 0
    """Devices that the stage's model hurts, by its last evaluation, as far as that has come."""
    compared: int = 0
    """Devices of which that is known."""

    def after(self, line: Row) -> "Standing":
        """Return where the run stands after one more round, of which a watcher is told this line."""
        run, stage, work = line.get("run", ""), str(line["stage"]), line["work"]
        before = self if (self.run, self.stage) == (run, stage) else Standing()
        stands = replace(before, run=run, stage=stage, work=work, rounds=line["rounds"])
        if work != "evaluate":
            return replace(stands, round=line["round"] + 1, loss=line["loss"])
        goes_on = before.work == "evaluate"
        hurt, compared = (line.get("hurt", 0), sum(line.get(key, 0) for key in ("helped", "hurt", "same")))
        return replace(
            stands,
            round=line["round"],
            hurt=hurt + (before.hurt if goes_on else 0),
            compared=compared + (before.compared if goes_on else 0),
        )

    def __str__(self) -> str:
        """Return all that is known in words."""
        facts = [
            f"{self.run} baseline" if self.run else "",
            f"{self.stage} model evaluated" if self.work == "evaluate" else DOING[Stage(self.stage)],
            f"round {self.round} of {self.rounds}" if self.rounds else "",
            f"loss {self.loss:.4f}" if self.loss is not None else "",
            f"{self.hurt} of {self.compared} devices hurt" if self.compared else "",
        ]
        return ", ".join(filter(None, facts))


class Speed:
    """How fast rounds end, by the last ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._ends: deque[tuple[int, float]] = deque(maxlen=_LOOKED_AT + 1)
        self._left = 0

    def tick(self, done: int, total: int) -> None:
        """Take note that a round has ended; counting from the start again begins anew."""
        now = self._clock()
        if self._ends and done <= self._ends[-1][0]:
            self._begun = self._ends[-1][1]
            self._ends.clear()
        if not self._ends:
            self._ends.append((done - 1, self._begun))
        self._ends.append((done, now))
        self._left = total - done

    @property
    def rate(self) -> float | None:
        """Rounds in a second, None where nothing is known yet."""
        if not self._ends:
            return None
        (first, begun), (last, ended) = self._ends[0], self._ends[-1]
        return (last - first) / (ended - begun) if ended > begun else None

    @property
    def left(self) -> timedelta | None:
        """The time left from now on, None where nothing is known yet, or nothing is left."""
        if not self._left or (rate := self.rate) is None:
            return None
        since = self._clock() - self._ends[-1][1]
        return timedelta(seconds=round(max(0.0, self._left / rate - since)))

    def facts(self) -> Iterator[str]:
        """Yield the speed and the time left in words, as far as they are known."""
        if (rate := self.rate) is not None:
            yield f"{_number(rate)} rounds/s"
        if (left := self.left) is not None:
            yield f"{left} left"


class Display:
    """Shows where a run stands: its stage, round, loss, devices hurt, speed and the time left."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_live = console.is_terminal and not console.is_dumb_terminal and not console.quiet
        self._plain = NowAndThen(console, clock)
        self._speed = Speed(clock)
        self._standing = Standing()
        self._done, self._total = 0, 0
        # Last: it asks at once what to show.
        self._live = Live(console=console, get_renderable=self._shown, transient=True)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def watch(self, line: Row, done: int, total: int) -> None:
        """Show that a round has ended."""
        self._standing = self._standing.after(line)
        self._speed.tick(done, total)
        self._done, self._total = done, total
        if not self._is_live:
            text = ", ".join([str(self._standing), *self._speed.facts()])
            self._plain.say(f"{done}/{total} {text}", is_last=done == total)

    def _shown(self) -> RenderableType:
        """Return what stands in the terminal at this moment."""
        if not self._total:
            return Text("starting")
        bar = Table.grid(padding=(0, 1))
        done = ProgressBar(total=self._total, completed=self._done, width=_BAR)
        bar.add_row(done, f"{self._done}/{self._total}", *self._speed.facts())
        return Group(Text(str(self._standing), no_wrap=True, overflow="ellipsis"), bar)


def _number(rate: float) -> str:
    """Return a number with three digits that count.

    >>> [_number(rate) for rate in (1234.5, 31.25, 0.01666)]
    ['1234', '31.2', '0.0167']
    """
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.3g}"
