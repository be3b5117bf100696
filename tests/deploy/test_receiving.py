"""Requests that are slow, cut off, compressed or repeated: they hold up nobody else and harm nothing."""

import gzip
import http.client
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from partita.deploy import keys, receiving, service
from partita.deploy.attempts import Unreachable
from partita.executors.replies import encoded_reply
from partita.protocol import Failure, Reply
from served import COMPUTES, Site, asked, make_homes, reply_of, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_homes(folder)
    return folder


@pytest.fixture
def site(made: Path) -> Iterator[Site]:
    with serving(made) as site:
        yield site


Upload = Callable[[Site, str, str], socket.socket]
"""Sends half of a reply as a device to the order with a nonce, and returns the connection."""


@pytest.fixture
def upload() -> Iterator[Upload]:
    with ExitStack() as stack:

        def send(site: Site, device: str, nonce: str) -> socket.socket:
            plain = socket.create_connection(("127.0.0.1", site.port), timeout=30)
            context, content = site.context(device), encoded_reply(nonce, reply_of(device))
            connection = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            head = (
                f"POST /v1/replies/{nonce} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
            )
            connection.sendall(head.encode() + b"\r\n" + content[: len(content) // 2])
            return connection

        yield send


def until(is_true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    while not is_true():
        time.sleep(0.01)


def is_closed(connection: socket.socket) -> bool:
    """Wait for the end of a connection, and return whether it came without an answer."""
    try:
        return connection.recv(1000) == b""
    except OSError:
        return True


def test_uploads_that_one_device_leaves_unfinished_do_not_hold_up_another(
    made: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encoded_reply("0" * 32, reply_of("ann")))
    monkeypatch.setattr(service, "_MEMORY", 2 * size)  # For one reply of each device.
    with serving(made) as site:
        nonces = asked(site, "ann", "bob"), site.hub.message("bob")["nonce"]
        stalled = [upload(site, "ann", nonces[0]) for _ in range(4)]
        with site.link("bob") as link:
            assert link.reply(nonces[1], encoded_reply(nonces[1], reply_of("bob")))
        answer = site.desk.next_answer(0)
        for connection in stalled:
            connection.close()
        until(lambda: not site.service._uploads)

    assert isinstance(answer, Reply)
    assert answer.device == "bob"


def test_a_new_upload_of_a_device_takes_the_place_of_its_old_one(site: Site, upload: Upload) -> None:
    nonce = asked(site, "ann")
    content = encoded_reply(nonce, reply_of("ann"))
    old = upload(site, "ann", nonce)
    until(lambda: "ann" in site.service._uploads)

    with site.link("ann") as link:
        assert link.reply(nonce, content)

    assert is_closed(old)
    assert isinstance(site.desk.next_answer(0), Reply)
    assert site.desk.next_answer(0) is None


def test_a_lost_connection_is_no_failure_and_the_reply_can_be_sent_again(site: Site, upload: Upload) -> None:
    nonce = asked(site, "ann")
    content = encoded_reply(nonce, reply_of("ann"))
    for _ in range(3):
        connection = upload(site, "ann", nonce)
        until(lambda: "ann" in site.service._uploads)
        connection.close()
        until(lambda: "ann" not in site.service._uploads)

    assert site.desk.next_answer(0) is None
    with site.link("ann") as link:
        assert link.reply(nonce, content)


def test_a_device_that_stops_sending_has_failed(
    site: Site, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_SILENCE", 0.1)
    nonce = asked(site, "ann")

    answer = upload(site, "ann", nonce).recv(1000)

    assert b"408" in answer
    failure = site.desk.next_answer(0)
    assert isinstance(failure, Failure)
    assert "not arrived in time" in failure.reason


def test_a_reply_to_an_order_that_is_answered_is_not_read(site: Site, upload: Upload) -> None:
    nonce = asked(site, "ann")
    content = encoded_reply(nonce, reply_of("ann"))
    with site.link("ann") as link:
        assert link.reply(nonce, content)

    answer = upload(site, "ann", nonce).recv(1000)

    assert b"200" in answer
    assert b'"counts": false' in answer


def test_tensors_that_a_device_does_not_read_take_no_memory_and_are_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "_SILENCE", 0.2)
    monkeypatch.setattr(receiving, "_SLOWEST", 1e12)
    content = bytes(2**25)  # Far more than the system keeps for a connection.
    asked(site, "ann")
    post = site.desk.find("ann")
    assert post is not None
    site.desk._tensors[post.tensors["shared"]] = content
    connection = http.client.HTTPSConnection("localhost", site.port, context=site.context("ann"))
    connection.request("GET", f"/v1/tensors/{post.tensors['shared']}")
    time.sleep(0.4)

    with pytest.raises(http.client.IncompleteRead) as caught:
        connection.getresponse().read()

    connection.close()
    assert len(caught.value.partial) < len(content) / 2


def test_a_compressed_request_is_taken_as_it_is(site: Site) -> None:
    # Decompressed, its first bytes would be valid JSON.
    body = gzip.compress(b"{}" + b" " * 200)

    status, _ = site.request(
        site.context("ann"), "POST", "/v1/poll", body=body, headers={"Content-Encoding": "gzip"}
    )

    assert status == 400


def test_a_connection_without_a_whole_request_is_closed(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_IDLE", 0.2)
    with serving(made) as site:
        connection = http.client.HTTPSConnection("localhost", site.port, context=site.context("ann"))
        connection.connect()
        connection.sock.sendall(b"POST /v1/poll HTTP/1.1\r\nHost: loc")
        connection.sock.settimeout(30)

        assert is_closed(connection.sock)
        connection.close()


def test_without_a_list_of_revoked_certificates_devices_are_told_to_come_again(site: Site) -> None:
    file = site.folder / "server" / keys.REVOKED
    content = file.read_bytes()
    with site.link("ann") as link:
        for damaged in (b"", content[:100]):  # As while the operator copies a new one.
            file.write_bytes(damaged)
            with pytest.raises(Unreachable, match="503"):
                link.poll({"computes": COMPUTES})
        file.write_bytes(content)
        asked(site, "ann")
        assert link.poll({"computes": COMPUTES})["kind"] == "order"


def test_a_server_may_have_a_connection_to_every_device() -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, most))
        receiving.allow_connections()
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
        receiving.allow_connections()
        again = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))

    assert allowed == again
    assert allowed[0] == (2**16 if most == resource.RLIM_INFINITY else min(2**16, most))
