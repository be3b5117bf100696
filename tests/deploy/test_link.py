"""A device's link: through a proxy that sees nothing, without passwords of other programs, in limits."""

import base64
import gzip
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connect_proxy import ConnectProxy
from partita.deploy.attempts import Rejected, Unreachable
from partita.deploy.link import Link, proxy_for
from partita.errors import ConfigError
from partita.executors.replies import encoded_reply
from served import COMPUTES, Site, asked, make_homes, reply_of, serving

_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_homes(folder)
    return folder


@pytest.fixture
def site(made: Path) -> Iterator[Site]:
    with serving(made) as site:
        yield site


@pytest.fixture
def recorded() -> bytearray:
    return bytearray()


@pytest.fixture
def proxy(recorded: bytearray) -> Iterator[ConnectProxy]:
    proxy = ConnectProxy(record=recorded.extend)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    yield proxy
    proxy.close()
    thread.join()


def test_a_device_behind_a_proxy_is_heard_and_the_proxy_sees_only_encrypted_bytes(
    site: Site, proxy: ConnectProxy, recorded: bytearray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    nonce = asked(site, "ann")
    with site.link("ann") as link:
        message = link.poll({"computes": COMPUTES})
        group = message["tensors"]["shared"]
        content = link.tensors(group["digest"], group["bytes"])
        assert link.reply(nonce, encoded_reply(nonce, reply_of("ann")))

    assert content == site.desk.tensors(group["digest"])
    assert [head.split()[:2] for head in proxy.heads] == [[b"CONNECT", f"localhost:{site.port}".encode()]]
    assert len(recorded) > 2000
    for secret in (nonce.encode(), b"v1/poll", b"Partita-Device", content):
        assert secret not in recorded


def test_a_proxy_gets_its_own_password(
    site: Site, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:its-own@"))
    asked(site, "ann")
    with site.link("ann") as link:
        assert link.poll({"computes": COMPUTES})["kind"] == "order"

    (head,) = proxy.heads
    assert base64.b64encode(b"user:its-own") in head


def test_passwords_in_netrc_do_not_leave_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server = Answering(answer("200 OK", b'{"kind": "wait"}'))
    with server as url, Link(url, "ann", None) as link:
        link.poll({})

    (request,) = server.requests
    assert b"Partita-Device: ann" in request
    assert b"authorization" not in request.lower()


def test_without_tls_no_proxy_is_used(proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.setenv("http_proxy", proxy.url)
    with Answering(answer("200 OK", b'{"kind": "wait"}')) as url, Link(url, "ann", None) as link:
        assert link.poll({}) == {"kind": "wait"}

    assert proxy.heads == []


def test_the_environment_names_the_proxy_and_the_hosts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("https://fl.example.org:8443") is None
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.org:3128")
    found = proxy_for("https://fl.example.org:8443")
    assert found is not None
    assert (str(found.url), found.headers) == ("http://proxy.example.org:3128", {})
    monkeypatch.setenv("NO_PROXY", "example.org")
    assert proxy_for("https://fl.example.org:8443") is None


@pytest.mark.parametrize("named", ["https://proxy:3128", "socks5://proxy:1080", "http://"])
def test_a_proxy_that_cannot_be_used_is_one_clear_line(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)

    with pytest.raises(ConfigError, match="`HTTPS_PROXY` must be an address such as http://HOST:PORT"):
        proxy_for("https://fl.example.org:8443")


class Answering:
    """A server that gives one answer to every request, whatever it is."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self.requests.append(client.recv(65536))
                client.sendall(self._answer)


def answer(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def test_more_than_an_order_announces_is_not_read() -> None:
    with (
        Answering(answer("200 OK", b"x" * 1000)) as url,
        Link(url, "ann", None) as link,
        pytest.raises(Unreachable, match="more than 10 bytes"),
    ):
        link.tensors("0" * 64, 10)


def test_the_reason_of_a_refusal_may_be_longer_than_what_was_asked_for() -> None:
    with (
        Answering(answer("404 Not Found", b'{"error": "over"}')) as url,
        Link(url, "ann", None) as link,
        pytest.raises(Rejected, match="over"),
    ):
        link.tensors("0" * 64, 10)


@pytest.mark.parametrize(
    "status", ["408 Request Timeout", "429 Too Many Requests", "503 Service Unavailable"]
)
def test_a_server_that_cannot_answer_now_is_asked_again(status: str) -> None:
    with (
        Answering(answer(status, b'{"error": "later"}')) as url,
        Link(url, "ann", None) as link,
        pytest.raises(Unreachable, match=status[:3]),
    ):
        link.poll({})


def test_a_compressed_answer_is_not_decompressed() -> None:
    body = gzip.compress(b'{"kind": "wait"}')
    with (
        Answering(answer("200 OK", body, "Content-Encoding: gzip")) as url,
        Link(url, "ann", None) as link,
        pytest.raises(Unreachable, match="not a Partita server"),
    ):
        link.poll({})
