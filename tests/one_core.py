"""A machine with one core, on which all visits are in one worker process."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def one_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Let this machine have one core in this block, and yield the options for one worker process.

    With `workers=1` visits are in the process of the run; a time limit needs another one.
    """
    with monkeypatch.context() as patched:
        patched.setattr("partita.executors.settings.usable_cores", lambda: 1)
        yield {"workers": 0, "timeout": 1000}
