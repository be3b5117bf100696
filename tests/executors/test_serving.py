import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from partita.executors import serving
from partita.executors.messages import send
from partita.executors.serving import Rank


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore what a rank does to its process."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("pauses", "ended"), [((0.05, 0.0), []), ((0.4, 0.0), [130])])
def test_a_rank_ends_at_a_second_signal_and_otherwise_when_rank_0_says_so(
    monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, float], ended: list[int]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(serving, "_LAUNCHER", 0.2)
    monkeypatch.setattr(serving, "_GRACE", 0.2, raising=False)  # It was the time after one signal.
    monkeypatch.setattr(serving, "end_process", lambda code, line: ends.append(code))
    ours, theirs = socket.socketpair()

    def end() -> None:
        # A second signal soon after is the launcher's, which passes on the first.
        time.sleep(0.1)
        for pause in pauses:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(pause)
        time.sleep(0.4)  # The rest of the round.
        send(ours, {"kind": "end", "code": 0, "line": ""}, {})

    with ours, theirs:
        thread = threading.Thread(target=end)
        thread.start()
        code = Rank(theirs, lambda message, store: pytest.fail("No run was sent.")).serve()
        thread.join()

    assert code == 0
    assert ends == ended
