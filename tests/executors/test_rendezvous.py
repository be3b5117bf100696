import socket
import threading

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


def test_a_missing_rank_ends_the_wait_with_one_line(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_WAIT", 0.2)

    with pytest.raises(RunFailed) as caught:
        rendezvous.gather(launch)

    assert str(caught.value).startswith(f"Rank 0 of 3 has not met the others at 127.0.0.1:{launch.port}: ")
    assert "\n" not in str(caught.value)
