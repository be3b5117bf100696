"""Watchers: callbacks after every round of a run. Several act as one; none can stop the run by failing."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from partita.errors import described
from partita.training.pipeline import RoundCallback

logger = logging.getLogger(__name__)

WatcherFactory = Callable[[Path, Mapping[str, Any]], RoundCallback | AbstractContextManager[RoundCallback]]
"""Makes a watcher for a run, or a context manager around one, from the run's folder and its config."""


def ignore(line: Mapping[str, Any], done: int, total: int) -> None:
    """Do nothing: the watcher where none is given."""


def labeled(watch: RoundCallback, folder: str) -> RoundCallback:
    """Return a watcher for an inner run: it adds the run's folder to every line, as `run`."""

    def add_label(line: Mapping[str, Any], done: int, total: int) -> None:
        inner = line.get("run", "")
        watch({**line, "run": f"{folder}/{inner}" if inner else folder}, done, total)

    return add_label


class Watchers:
    """Calls several watchers after every round; one that fails is logged once and not called again.

    Args:
        factories: the factory of each watcher, by its name.
        then: called after them; unlike them it may stop the run by raising.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[[], RoundCallback | AbstractContextManager[RoundCallback]]],
        then: RoundCallback | None = None,
    ) -> None:
        self._factories = factories
        self._then = then or ignore
        self._watchers: dict[str, RoundCallback] = {}
        self._open: dict[str, ExitStack] = {}
        self._failed: set[str] = set()

    def __enter__(self) -> Self:
        for name, make in self._factories.items():
            with self._guarded(name), ExitStack() as stack:
                made = make()
                watch = stack.enter_context(made) if isinstance(made, AbstractContextManager) else made
                if not callable(watch):
                    raise TypeError(f"it must return a function of `line`, `done` and `total`, got {watch!r}")
                self._watchers[name] = watch
                self._open[name] = stack.pop_all()
        return self

    def __call__(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """Call all of them after a round."""
        for name, watch in self._watchers.items():
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
        """Log what a watcher raises as a warning, the first time."""
        try:
            yield
        except Exception as error:
            if name not in self._failed:
                self._failed.add(name)
                logger.warning("The watcher `%s` failed and is not called again: %s.", name, described(error))
