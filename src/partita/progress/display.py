"""The display of a run's progress: live in a terminal or a notebook, plain lines at intervals elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from partita.progress.bar import PeriodicPrinter
from partita.progress.notebook import notebook_bar
from partita.protocol import Stage
from partita.runs.curves import mean_in
from partita.shown import shown
from partita.training.evaluation import Mean, combined_mean

_WINDOW = 30
"""The number of most recent rounds that the speed is measured over."""
_BAR_WIDTH = 30
ACTIVITIES = {
    Stage.PRETRAINED: "pretraining",
    Stage.PERSONALIZED: "personalizing",
    Stage.FINETUNED: "fine-tuning",
}
"""The name of the training in each stage."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The state of a run after a round."""

    run: str = ""
    """The folder of an inner run; empty for the run itself."""
    stage: str = ""
    seen: bool = True
    """Whether the round's devices are in training; unseen ones come last."""
    work: str = ""
    final: bool = False
    """Whether the final model of the stage is evaluated."""
    round: int = 0
    """Rounds of the stage that are done."""
    rounds: int = 0
    """Rounds of the stage in total."""
    loss: float | None = None
    """The loss of the stage's last training round."""
    headline: str = ""
    """The name of the headline metric."""
    mean: Mean | None = None
    """The mean of the headline metric with its weight, by the stage's last evaluation so far."""
    hurt: int = 0
    """Devices that are hurt, by the stage's last evaluation so far."""
    compared: int = 0
    """Devices that this evaluation has compared with the pretrained model so far."""

    def after(self, line: Mapping[str, Any]) -> "RunProgress":
        """Return the state after one more round, given the line that watchers receive."""
        run, stage, work = line.get("run", ""), str(line["stage"]), line["work"]
        seen = line.get("seen", True)
        before = self if (self.run, self.stage, self.seen) == (run, stage, seen) else RunProgress()
        state = replace(
            before, run=run, stage=stage, seen=seen, work=work, final=line["final"], rounds=line["rounds"]
        )
        if work != "evaluate":
            return replace(state, round=line["round"] + 1, loss=line["loss"])
        is_further = before.work == "evaluate" and before.final == line["final"]
        known = before if is_further else RunProgress()  # Earlier blocks of this evaluation.
        return replace(
            state,
            round=line["round"],
            headline=line["headline"],
            mean=combined_mean(filter(None, (known.mean, mean_in(line, "metric")))),
            hurt=known.hurt + line.get("hurt", 0),
            compared=known.compared + sum(line.get(key, 0) for key in ("helped", "hurt", "same")),
        )

    @property
    def evaluation(self) -> str:
        """The headline metric in words, empty before the stage's first evaluation."""
        return "" if self.mean is None else f"{self.headline} {self.mean[0]:.4f}"

    def __str__(self) -> str:
        """Return everything that is known, in words."""
        facts = [
            f"{self.run} baseline" if self.run else "",
            "" if self.seen else "unseen devices",
            f"evaluating the {self.stage} model"
            if self.work == "evaluate"
            else ACTIVITIES[Stage(self.stage)],
            f"round {self.round} of {self.rounds}" if self.rounds else "",
            f"loss {self.loss:.4f}" if self.loss is not None else "",
            self.evaluation,
            f"{self.hurt} of {self.compared} hurt" if self.compared else "",
        ]
        return shown(", ".join(filter(None, facts)))


class Speed:
    """The speed of a run, measured over its most recent rounds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._ends: deque[tuple[int, float]] = deque(maxlen=_WINDOW + 1)
        self._remaining = 0

    def update(self, done: int, total: int) -> None:
        """Record the end of a round; a count that does not grow belongs to another run and starts again."""
        now = self._clock()
        if self._ends and done <= self._ends[-1][0]:
            self._begun = self._ends[-1][1]
            self._ends.clear()
        if not self._ends:
            self._ends.append((done - 1, self._begun))
        self._ends.append((done, now))
        self._remaining = total - done

    @property
    def rate(self) -> float | None:
        """Rounds per second, None if no round has ended."""
        if not self._ends:
            return None
        (first, started), (last, ended) = self._ends[0], self._ends[-1]
        return (last - first) / (ended - started) if ended > started else None

    @property
    def left(self) -> timedelta | None:
        """The time left, None if it is not known or nothing is left."""
        if not self._remaining or (rate := self.rate) is None:
            return None
        since = self._clock() - self._ends[-1][1]
        return timedelta(seconds=round(max(0.0, self._remaining / rate - since)))

    def facts(self) -> Iterator[str]:
        """Yield the speed and the time left in words, if they are known."""
        if (rate := self.rate) is not None:
            yield f"{_three_digits(rate)} rounds/s"
        if (left := self.left) is not None:
            yield f"{left} left"


class Display:
    """Shows a run's stage, round, loss, metric, devices hurt, speed and the time left."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        is_dumb = console.is_dumb_terminal or console.is_jupyter
        self._is_live = console.is_terminal and not is_dumb and not console.quiet
        self._plain = PeriodicPrinter(console, clock)
        self._cell = notebook_bar(console)
        self._speed = Speed(clock)
        self._progress = RunProgress()
        self._done, self._total = 0, 0
        # Last: it calls `_content` at once.
        self._live = Live(console=console, get_renderable=self._content, transient=True)

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
        if self._cell is not None:
            self._cell.remove()

    def watch(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Show that a round has ended."""
        self._progress = self._progress.after(line)
        self._speed.update(done, total)
        self._done, self._total = done, total
        if self._cell is not None:
            counted = " ".join([f"{done}/{total}", *self._speed.facts()])
            self._cell.update(done, total, counted, str(self._progress))
        elif not self._is_live:
            text = ", ".join([str(self._progress), *self._speed.facts()])
            self._plain.print(f"{done}/{total} {text}", is_last=done == total)

    def _content(self) -> RenderableType:
        """Return the lines to show in the terminal now."""
        if not self._total:
            return Text("starting")
        bar = Table.grid(padding=(0, 1))
        done = ProgressBar(total=self._total, completed=self._done, width=_BAR_WIDTH)
        bar.add_row(done, f"{self._done}/{self._total}", *self._speed.facts())
        return Group(Text(str(self._progress), no_wrap=True, overflow="ellipsis"), bar)


def _three_digits(rate: float) -> str:
    """Return a number with three significant digits.

    >>> [_three_digits(rate) for rate in (1234.5, 31.25, 0.01666)]
    ['1234', '31.2', '0.0167']
    """
    return f"{rate:.0f}" if rate >= 1000 else f"{rate:.3g}"
