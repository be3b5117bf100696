import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from partita.errors import RunFailed
from partita.executors import rendezvous
from partita.executors.launch import Launch
from partita.executors.messages import send
from ranks import free_port


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Rank 0 of three, on this machine."""
    launch = Launch(rank=0, ranks=3, address="127.0.0.1", port=free_port())
    monkeypatch.setenv("MASTER_ADDR", launch.address)
    monkeypatch.setenv("MASTER_PORT", str(launch.port))
    return launch


def test_all_ranks_connect_to_rank_0_and_are_known_by_rank(launch: Launch) -> None:
    joined: dict[int, socket.socket] = {}

    def join(rank: int) -> None:
        joined[rank] = rendezvous.join(Launch(rank=rank, ranks=3, address=launch.address, port=launch.port))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 1)]
    for thread in threads:
        thread.start()
    guests = rendezvous.gather(launch)
    for thread in threads:
        thread.join()

    assert [str(guest) for guest in guests] == [f"rank {rank} on {socket.gethostname()}" for rank in (1, 2)]
    for guest in guests:
        joined[guest.rank].sendall(b"x")
        assert guest.connection.recv(1) == b"x"
        guest.connection.close()
        joined[guest.rank].close()


def test_a_stranger_without_the_secret_is_not_admitted() -> None:
    secret = b"s" * 32
    for given in (b"x" * 32, b"short"):
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(given)
            send(theirs, {"rank": 1, "host": "elsewhere"})
            theirs.shutdown(socket.SHUT_WR)

            assert rendezvous._admit(ours, secret) is None


@pytest.fixture
def arriving(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., socket.socket]]:
    """Connect to rank 0, which listens: with the secret as the rank that is given, or as a stranger."""
    kept: dict[str, str] = {}
    listens, sockets = threading.Event(), list[socket.socket]()

    class Store:
        def set(self, key: str, value: str) -> None:
            kept[key] = value
            listens.set()

    monkeypatch.setattr(rendezvous, "_store", lambda launch: Store())

    def connect(rank: int | None = None) -> socket.socket:
        assert listens.wait(10)
        port, secret = json.loads(kept[rendezvous._KEY])
        connection = socket.create_connection(("127.0.0.1", port))
        sockets.append(connection)
        if rank is not None:
            # In two pieces, as a network may deliver it.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(bytes.fromhex(secret)[:5])
            time.sleep(0.05)
            connection.sendall(bytes.fromhex(secret)[5:])
            send(connection, {"rank": rank, "host": "elsewhere"})
        return connection

    yield connect
    for connection in sockets:
        connection.close()


def during_gather(launch: Launch, act: Callable[[], object]) -> list[rendezvous.Guest]:
    """Return the ranks that rank 0 has gathered, while another thread acts."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        return rendezvous.gather(launch)
    finally:
        thread.join()


def test_silent_strangers_keep_no_rank_waiting(
    launch: Launch, arriving: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_WAIT", 5)

    # Each of the strangers may be silent for 10 seconds.
    guests = during_gather(launch, lambda: [arriving(rank) for rank in (None, None, 1, None, 2)])

    assert [guest.rank for guest in guests] == [1, 2]
    for guest in guests:
        guest.connection.close()


def test_a_rank_that_is_gone_before_the_others_come_ends_the_wait(
    launch: Launch, arriving: Callable[..., socket.socket]
) -> None:
    with pytest.raises(RunFailed, match="Rank 1 on elsewhere is gone before all ranks have started"):
        during_gather(launch, lambda: arriving(1).close())


@pytest.mark.parametrize("ranks", [(1, 1), (3,)])
def test_two_ranks_of_one_number_and_unknown_ones_are_refused(
    launch: Launch, arriving: Callable[..., socket.socket], ranks: tuple[int, ...]
) -> None:
    with pytest.raises(RunFailed, match="Ranks must be numbered from 0 to 2, got rank"):
        during_gather(launch, lambda: [arriving(rank) for rank in ranks])


def test_a_rank_that_waits_for_others_says_so_and_ends_by_ctrl_c(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rendezvous, "_WAIT", 5)
    monkeypatch.setattr(rendezvous, "_PATIENCE", 0.1)
    begin = time.monotonic()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        rendezvous.gather(launch)

    assert time.monotonic() - begin < 5
    assert caplog.messages == [f"Waiting for the other ranks, at 127.0.0.1:{launch.port}."]


@pytest.mark.slow
def test_a_missing_rank_ends_the_wait_with_one_line(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_WAIT", 0.2)

    with pytest.raises(RunFailed) as caught:
        rendezvous.gather(launch)

    assert str(caught.value).startswith(f"Rank 0 of 3 has not met the others at 127.0.0.1:{launch.port}: ")
    assert "\n" not in str(caught.value)
