import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from partita.errors import RankLost
from partita.executors.messages import receive
from partita.executors.peers import Peers
from partita.executors.rendezvous import Guest


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process live on after the end of a run, with the signals that were ignored there."""
    monkeypatch.setattr(Peers, "_end_after_grace", lambda self: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_loss_of_a_rank_is_not_hidden_by_the_launchers_sigterm() -> None:
    ours, theirs = socket.socketpair()
    peers = Peers([Guest(1, "elsewhere", ours)], "here")

    def run() -> None:
        with peers.connected():
            try:
                theirs.close()
                threading.Event().wait(10)
            finally:
                # torchrun sends it as soon as the first rank of its machine has ended.
                os.kill(os.getpid(), signal.SIGTERM)

    with ours, pytest.raises(RankLost, match="Rank 1 on elsewhere is gone: its process has ended"):
        run()


def test_the_reason_of_a_refusal_is_not_hidden_by_the_launchers_sigterm() -> None:
    ours, theirs = socket.socketpair()
    peers = Peers([Guest(1, "elsewhere", ours)], "here")

    def leave() -> None:
        assert receive(theirs) is not None
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.2)
        theirs.close()

    with ours, peers.connected():
        threading.Thread(target=leave).start()
        peers.end(2, "Other data.")
