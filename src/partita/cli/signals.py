"""Ctrl-C and SIGTERM: the first one lets a command finish its round, a second one ends it at once."""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from partita.errors import Terminated

if TYPE_CHECKING:
    from partita.training.pipeline import RoundCallback

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAUNCHER = 2.0
"""Seconds in which further signals are the same request: launchers pass on a Ctrl-C that ranks get anyway."""
_NOTICE = "partita: Finishing this round first; a second Ctrl-C stops at once."

_Handler = Callable[[int, FrameType | None], Any]


def _error_of(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise _error_of(number)


def _replaceable(*, default: bool) -> dict[int, Any]:
    """Return the handlers of both signals that may be replaced: not of those that are ignored.

    `default` says whether those of Python and the system may be; the others are of `python -m partita`.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    kept = {None, signal.SIG_IGN} | (set() if default else {signal.SIG_DFL, signal.default_int_handler})
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler not in kept}


def _restore(handlers: Mapping[int, Any], own: _Handler) -> None:
    """Restore handlers, unless somebody else has replaced ours meanwhile."""
    for number, handler in handlers.items():
        if signal.getsignal(number) == own:
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let both signals raise `KeyboardInterrupt` in this block, where `python -m partita` handles them."""
    before = _replaceable(default=False)
    for number in before:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        _restore(before, _raise)


class Interrupts:
    """Lets the first signal wait for the end of a round; a context manager around the rounds of a command.

    A second signal raises `KeyboardInterrupt` at once, and a third one does what it would without this.

    Args:
        has_launcher: whether this process is a rank of a launcher.
    """

    def __init__(self, *, has_launcher: bool = False) -> None:
        self._patience = _LAUNCHER if has_launcher else 0.0
        self._first: tuple[int, float] | None = None
        self._before: dict[int, Any] = {}
        self._has_said_so = threading.Event()

    def __enter__(self) -> Self:
        self._before = _replaceable(default=True)
        for number in self._before:
            signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the handlers; raise if a signal came after the last round."""
        _restore(self._before, self._handle)
        if self._first is not None:
            self._has_said_so.wait(1.0)
        if kind is None and (ending := self.ending()) is not None:
            raise ending

    def ending(self) -> KeyboardInterrupt | None:
        """Return the exception to end with after this round, None where there was no signal."""
        return None if self._first is None else _error_of(self._first[0])

    def after(self, watch: "RoundCallback") -> "RoundCallback":
        """Return a callback that ends a run after a round, if there was a signal."""

        def watch_and_end(line: Mapping[str, Any], done: int, total: int) -> None:
            watch(line, done, total)
            if (ending := self.ending()) is not None:
                raise ending

        return watch_and_end

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = number, now
            # In a thread: what this signal has interrupted may have locked the stream.
            _thread.start_new_thread(self._say_so, ())
        elif now - self._first[1] >= self._patience:
            _restore(self._before, self._handle)
            raise _error_of(number)

    def _say_so(self) -> None:
        print(_NOTICE, file=sys.stderr, flush=True)
        self._has_said_so.set()
