"""Several watchers as one: none of them can end a run by failing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from partita.progress.watchers import Watchers, within

LINE = {"stage": "pretrained", "round": 0}


def quiet(*_: Any) -> None:
    """Nobody is told."""


def failing(*_: Any) -> None:
    raise OSError("no\nserver")


def test_one_that_raises_is_warned_of_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []
    tried: list[int] = []

    def failing_once_told(line: Any, done: int, total: int) -> None:
        tried.append(done)
        failing()

    makers = {
        "bad:one": lambda: failing_once_told,
        "good:one": lambda: lambda line, done, total: told.append(done),
    }

    with Watchers(makers, then=lambda line, done, total: told.append(-done)) as watchers:
        for done in (1, 2, 3):
            watchers(LINE, done, 3)

    assert told == [1, -1, 2, -2, 3, -3]
    assert tried == [1]
    (warning,) = caplog.messages
    assert warning.startswith(
        "The watcher `bad:one` failed and is told no more: OSError: no server (test_wat"
    )
    assert "\n" not in warning


def test_one_that_cannot_be_made_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with Watchers({"bad:maker": failing, "bad:watch": lambda: 3}) as watchers:
        watchers(LINE, 1, 1)

    assert [message.split("`")[1] for message in caplog.messages] == ["bad:maker", "bad:watch"]
    assert "must return a function of a round's line, got 3" in caplog.messages[1]


class Stop(Exception):
    pass


def test_whoever_began_the_run_may_end_it_and_watchers_learn_how_it_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends: list[str] = []

    @contextmanager
    def noting() -> Iterator[Any]:
        try:
            yield lambda *_: ends.append("told")
        except Stop:
            ends.append("stopped")
            raise
        ends.append("finished")

    @contextmanager
    def swallowing() -> Iterator[Any]:
        try:
            yield quiet
        except Stop:
            ends.append("swallowed")

    def stop(*_: Any) -> None:
        raise Stop

    makers = {"a:noting": noting, "a:swallowing": swallowing}
    with pytest.raises(Stop), Watchers(makers, then=stop) as watchers:
        watchers(LINE, 1, 2)
    with Watchers(makers) as watchers:
        watchers(LINE, 1, 2)

    assert ends == ["told", "stopped", "swallowed", "told", "finished"]
    assert not caplog.messages


def test_one_that_fails_at_its_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def failing_at_its_end() -> Iterator[Any]:
        yield quiet
        failing()

    with caplog.at_level(logging.WARNING), Watchers({"bad:end": failing_at_its_end}) as watchers:
        watchers(LINE, 1, 1)

    assert "`bad:end` failed" in caplog.text


def test_a_run_in_a_run_is_named_by_its_folder() -> None:
    told: list[Any] = []

    watch = within(within(lambda *given: told.append(given), "cells/a-1"), "finetune")
    watch(LINE, 1, 2)

    assert told == [({**LINE, "run": "cells/a-1/finetune"}, 1, 2)]
