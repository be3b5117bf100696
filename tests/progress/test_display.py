"""The display of a run's progress, given the lines that watchers receive."""

import io
import itertools
import sys
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from partita.progress.bar import ProgressBar
from partita.progress.display import Display, RunProgress, Speed
from partita.protocol import Stage


def line(stage: Stage, work: str, round: int, loss: float | None, rounds: int, **further: Any) -> dict:
    fields = {"stage": stage, "work": work, "round": round, "loss": loss, "rounds": rounds, "final": False}
    return fields | ({"headline": "accuracy"} if work == "evaluate" else {}) | further


def counts(helped: int, hurt: int, same: int) -> dict[str, int]:
    return {"helped": helped, "hurt": hurt, "same": same}


LINES = [
    line(Stage.PRETRAINED, "update", 0, 2.25, 1),
    line(Stage.PRETRAINED, "evaluate", 1, 2.0, 1),
    line(Stage.PERSONALIZED, "update", 0, 1.5, 3),
    line(Stage.PERSONALIZED, "evaluate", 1, 1.25, 3, metric=0.5, weight=300, **counts(80, 12, 8)),
    line(Stage.PERSONALIZED, "evaluate", 1, 1.25, 3, metric=0.7, weight=100, **counts(40, 5, 4)),
    line(Stage.PERSONALIZED, "update", 1, None, 3),
    line(Stage.PERSONALIZED, "evaluate", 2, 1.0, 3, metric=0.75, weight=300, **counts(90, 2, 8)),
    line(Stage.FINETUNED, "finetune", 0, 0.5, 2),
    line(Stage.FINETUNED, "evaluate", 2, 0.75, 2, **counts(0, 0, 0)),
    line(Stage.PRETRAINED, "evaluate", 0, 0.5, 0, run="finetune"),
]
TEXTS = [
    "pretraining, round 1 of 1, loss 2.2500",
    "evaluating the pretrained model, round 1 of 1, loss 2.2500",
    "personalizing, round 1 of 3, loss 1.5000",
    "evaluating the personalized model, round 1 of 3, loss 1.5000, accuracy 0.5000, 12 of 100 hurt",
    # Two blocks of one evaluation, 100 devices and 49: (0.5 * 300 + 0.7 * 100) / 400.
    "evaluating the personalized model, round 1 of 3, loss 1.5000, accuracy 0.5500, 17 of 149 hurt",
    # No device replied: the metric and the count of devices hurt stay.
    "personalizing, round 2 of 3, accuracy 0.5500, 17 of 149 hurt",
    # Another evaluation starts a new mean and count.
    "evaluating the personalized model, round 2 of 3, accuracy 0.7500, 2 of 100 hurt",
    # So does another stage.
    "fine-tuning, round 1 of 2, loss 0.5000",
    # Without a metric on any device there is no count.
    "evaluating the finetuned model, round 2 of 2, loss 0.5000",
    "finetune baseline, evaluating the pretrained model",
]


def test_every_line_updates_the_progress() -> None:
    progress, texts = RunProgress(), []
    for given in LINES:
        progress = progress.after(given)
        texts.append(str(progress))

    assert texts == TEXTS


def clock_of(*moments: float) -> Any:
    times = itertools.chain(moments, itertools.repeat(moments[-1]))
    return lambda: next(times)


def test_speed_and_time_left() -> None:
    now = [100.0]
    speed = Speed(lambda: now[0])
    assert (speed.rate, speed.left) == (None, None)

    # Resumed at round 7 of 20: three rounds in 6 seconds, so 11 rounds are left for 22 seconds.
    for moment, done in ((102.0, 7), (105.0, 8), (106.0, 9)):
        now[0] = moment
        speed.update(done, 20)

    assert speed.rate == 0.5
    assert speed.left == timedelta(seconds=22)
    now[0] = 109.0
    assert speed.left == timedelta(seconds=19)
    now[0] = 1000.0
    assert speed.left == timedelta(0)


def test_speed_is_measured_over_the_last_rounds_of_one_run() -> None:
    now = [0.0]
    speed = Speed(lambda: now[0])
    for done in range(1, 41):
        now[0] += 10.0 if done <= 10 else 0.25
        speed.update(done, 50)
    assert speed.rate == 4.0

    now[0] += 2.0
    speed.update(1, 3)

    assert speed.rate == 0.5
    assert speed.left == timedelta(seconds=4)
    speed.update(3, 3)
    assert speed.left is None


def shown(console: Console, clock: Any) -> str:
    with Display(console, clock) as display:
        for number, given in enumerate(LINES[:7], start=1):
            display.watch(given, number, 7)
        if console.is_terminal:
            display._live.refresh()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_a_line_is_printed_every_five_seconds_and_at_the_end() -> None:
    now = iter([0.0, *(moment for second in (1, 2, 4, 6, 7, 8, 9) for moment in [float(second)] * 3)])
    console = Console(file=io.StringIO(), width=20)

    text = shown(console, lambda: next(now))

    # Rounds end at seconds 1, 2, 4, 6, 7, 8 and 9: the second line is due at 6, and 4 rounds took 6 seconds.
    assert text.splitlines() == [
        f"1/7 {TEXTS[0]}, 1 rounds/s, 0:00:06 left",
        f"4/7 {TEXTS[3]}, 0.667 rounds/s, 0:00:04 left",
        f"7/7 {TEXTS[6]}, 0.778 rounds/s",
    ]


def test_in_a_terminal_there_are_two_lines() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, _environ={})

    text = shown(console, clock_of(0.0, 7.0))

    assert f"{TEXTS[6]}" in text
    assert "7/7 1 rounds/s" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_quiet_console_prints_nothing(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, quiet=True)

    assert shown(console, clock_of(0.0, 7.0)) == ""
    with ProgressBar(console) as progress:
        progress.update(1, 2, "something")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""
    # Warnings must still be printed: nothing replaces the error stream.
    before = sys.stderr
    with Display(console), ProgressBar(console):
        assert sys.stderr is before


def test_a_plain_line_is_not_markup() -> None:
    console = Console(file=io.StringIO())

    with ProgressBar(console) as progress:
        progress.update(2, 2, "[bold]d[0].*")

    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "2/2 [bold]d[0].*\n"


def test_hidden_characters_in_the_name_of_a_metric_are_shown_escaped() -> None:
    fields = {"metric": 0.5, "weight": 3, **counts(1, 0, 0), "headline": "clear\x1b[2J\x07"}

    text = str(RunProgress().after(line(Stage.PERSONALIZED, "evaluate", 1, None, 3) | fields))

    assert r"clear\x1b[2J\x07 0.5000" in text
    assert text.isprintable()
