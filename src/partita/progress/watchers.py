"""Watchers of a run's rounds: several as one, none of which can end the run by failing."""

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from partita.training.evaluation import DeviceRow as Row
from partita.training.pipeline import RoundCallback as Watch

logger = logging.getLogger(__name__)

Maker = Callable[[Path, Mapping[str, Any]], Watch | AbstractContextManager[Watch]]
"""Given a run's folder and its config, returns what is told of its rounds, or a context manager that gives it
for as long as the run goes."""


def nobody(line: Row, done: int, total: int) -> None:
    """Watch without being told of anything."""


def within(watch: Watch, folder: str) -> Watch:
    """Return a watch that says which of several runs a round is of: the one in this folder."""

    def told(line: Row, done: int, total: int) -> None:
        inner = line.get("run", "")
        watch({**line, "run": f"{folder}/{inner}" if inner else folder}, done, total)

    return told


class Watchers:
    """Tells several watchers of every round; one that fails is warned of and told no more.

    Args:
        makers: what makes each of them, by its name.
        then: who is told after them, and may end the run by raising.
    """

    def __init__(
        self,
        makers: Mapping[str, Callable[[], Watch | AbstractContextManager[Watch]]],
        then: Watch | None = None,
    ) -> None:
        self._makers = makers
        self._then = then or nobody
        self._told: dict[str, Watch] = {}
        self._open: dict[str, ExitStack] = {}
        self._failed: set[str] = set()

    def __enter__(self) -> Self:
        for name, make in self._makers.items():
            with self._guarded(name), ExitStack() as stack:
                made = make()
                watch = stack.enter_context(made) if isinstance(made, AbstractContextManager) else made
                if not callable(watch):
                    raise TypeError(f"it must return a function of a round's line, got {watch!r}")
                self._told[name] = watch
                self._open[name] = stack.pop_all()
        return self

    def __call__(self, line: Row, done: int, total: int) -> None:
        """Tell all of them of a round."""
        for name, watch in self._told.items():
            if name not in self._failed:
                with self._guarded(name):
                    watch(line, done, total)
        self._then(line, done, total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, stack in self._open.items():
            with self._guarded(name):
                stack.__exit__(kind, error, trace)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Turn what a watcher raises into a warning, the first time."""
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                logger.warning("The watcher `%s` failed and is told no more: %s.", name, _what(error))


def _what(error: Exception) -> str:
    """Return what an error says, on one line, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno})"
