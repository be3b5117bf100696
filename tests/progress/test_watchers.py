"""Several watchers as one: none of them can stop a run by failing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from partita.progress.watchers import Watchers, labeled

LINE = {"stage": "pretrained", "round": 0}


def quiet(*_: Any) -> None:
    """Do nothing."""


def failing(*_: Any) -> None:
    raise OSError("no\nserver")


def test_one_that_raises_is_logged_once_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []
    tried: list[int] = []

    def failing_watcher(line: Any, done: int, total: int) -> None:
        tried.append(done)
        failing()

    makers = {
        "bad:one": lambda: failing_watcher,
        "good:one": lambda: lambda line, done, total: called.append(done),
    }

    with Watchers(makers, then=lambda line, done, total: called.append(-done)) as watchers:
        for done in (1, 2, 3):
            watchers(LINE, done, 3)

    assert called == [1, -1, 2, -2, 3, -3]
    assert tried == [1]
    (warning,) = caplog.messages
    assert warning.startswith(
        "The watcher `bad:one` failed and is not called again: OSError: no server (test_wat"
    )
    assert "\n" not in warning


def test_one_that_cannot_be_made_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Watchers({"bad:maker": failing, "bad:watch": lambda: 3}) as watchers:
        watchers(LINE, 1, 1)

    assert [message.split("`")[1] for message in caplog.messages] == ["bad:maker", "bad:watch"]
    assert "must return a function of `line`, `done` and `total`, got 3" in caplog.messages[1]


class Stop(Exception):
    pass


def test_the_last_watcher_may_stop_the_run_and_context_managers_see_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends: list[str] = []

    @contextmanager
    def noting() -> Iterator[Any]:
        try:
            yield lambda *_: ends.append("called")
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

    assert ends == ["called", "stopped", "swallowed", "called", "finished"]
    assert not caplog.messages


def test_one_that_fails_at_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def failing_at_its_end() -> Iterator[Any]:
        yield quiet
        failing()

    with caplog.at_level(logging.WARNING), Watchers({"bad:end": failing_at_its_end}) as watchers:
        watchers(LINE, 1, 1)

    assert "`bad:end` failed" in caplog.text


def test_an_inner_run_is_labeled_with_its_folder() -> None:
    called: list[Any] = []

    watch = labeled(labeled(lambda *given: called.append(given), "cells/a-1"), "finetune")
    watch(LINE, 1, 2)

    assert called == [({**LINE, "run": "cells/a-1/finetune"}, 1, 2)]
