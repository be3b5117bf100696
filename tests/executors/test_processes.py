"""A nursery forks children on demand, and nothing that it has started outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from marks import slow_but
from partita.durable import locked
from partita.executors.messages import receive, send
from partita.executors.processes import Child, Nursery


def echo(connection: socket.socket, values: dict[str, Any]) -> None:
    while (message := receive(connection)) is not None:
        send(connection, {**values, **message.values, "threads": torch.get_num_threads()})


def ask(child: Child, **values: Any) -> dict[str, Any]:
    send(child.connection, values)
    answer = receive(child.connection)
    assert answer is not None
    return answer.values


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while not all(map(is_gone, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if not is_gone(pid)]}"
        time.sleep(0.01)


def test_children_serve_closures_on_one_thread_though_the_parent_has_used_several() -> None:
    secret = object()

    def serve(connection: socket.socket, values: dict[str, Any]) -> None:
        torch.ones(700, 700).exp().sum()  # On several threads, it would not return here.
        echo(connection, {**values, "secret": id(secret)})

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(700, 700).exp().sum()
    with Nursery(serve) as nursery:
        children = [nursery.spawn({"number": number}) for number in range(2)]
        answers = [ask(child, hello="there") for child in children]
    torch.set_num_threads(threads)

    expected = {"hello": "there", "secret": id(secret), "threads": 1}
    assert answers == [{**expected, "number": 0}, {**expected, "number": 1}]
    wait_until_gone([child.pid for child in children])


def test_a_child_is_killed_and_replaced_while_the_parent_has_threads() -> None:
    with Nursery(lambda connection, values: time.sleep(3600)) as nursery:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            for _ in range(3):
                child = nursery.spawn({})
                child.kill()
                assert receive(child.connection) is None
                assert child.exit_reason() == "was killed by signal 9"
        finally:
            stop.set()
            thread.join()


@pytest.mark.slow
def test_forking_while_another_thread_prints_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    def serve(connection: socket.socket, values: dict[str, Any]) -> None:
        sys.stderr.write("from a child\n")
        send(connection, {})

    stop = threading.Event()

    def print_on() -> None:
        while not stop.is_set():
            sys.stderr.write("from a thread" * 100 + "\n")

    thread = threading.Thread(target=print_on)
    thread.start()
    try:
        for _ in range(10):
            with Nursery(serve) as nursery:
                assert receive(nursery.spawn({}).connection) is not None
    finally:
        stop.set()
        thread.join()

    assert capfd.readouterr().err.count("from a child\n") == 10


def test_a_child_that_ends_by_itself_says_how(capfd: pytest.CaptureFixture[str]) -> None:
    def serve(connection: socket.socket, values: dict[str, Any]) -> None:
        if values["code"] == 1:
            raise ValueError("broken")
        os._exit(values["code"])

    def reason(child: Child) -> str:
        assert receive(child.connection) is None  # It has ended: by itself, however long that took.
        return child.exit_reason()

    with Nursery(serve) as nursery:
        reasons = [reason(nursery.spawn({"code": code})) for code in (1, 3)]

    assert reasons == ["ended with exit code 1", "ended with exit code 3"]
    assert "ValueError: broken" in capfd.readouterr().err


def test_children_hold_no_lock_of_the_parent(tmp_path: Path) -> None:
    with locked(tmp_path) as is_free:
        assert is_free
        nursery = Nursery(echo).__enter__()
        child = nursery.spawn({})
        assert ask(child, hello="there")
    with locked(tmp_path) as is_free:
        assert is_free
    nursery.__exit__(None, None, None)


_PARENT = """
import sys, time
from pathlib import Path
from partita.executors.processes import Nursery

def serve(connection, values):
    connection.sendall(b"x")
    time.sleep(3600)

with Nursery(serve, lambda: Path(sys.argv[1]).touch()) as nursery:
    children = [nursery.spawn({}) for _ in range(2)]
    for child in children:
        child.connection.recv(1)
    print(nursery._pid, *[child.pid for child in children], flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", slow_but([signal.SIGKILL, signal.SIGTERM], signal.SIGKILL))
def test_nothing_outlives_the_parent(number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "orphaned"
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, mark], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]

    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()

    assert len(pids) == 3
    wait_until_gone(pids)
    assert mark.exists()


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_is_left_to_the_parent(tmp_path: Path) -> None:
    mark = tmp_path / "orphaned"
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, mark], start_new_session=True, **pipes)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]

    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate()

    wait_until_gone(pids)
    assert errors.count("KeyboardInterrupt") == 1
    assert not mark.exists()
