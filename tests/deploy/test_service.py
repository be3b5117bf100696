"""The HTTPS service on loopback: who is heard, and what is refused."""

import http.client
import json
import random
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.deploy import keys
from partita.deploy.hub import Hub
from partita.deploy.link import Rejected, Unreachable, check_url, persistently
from partita.deploy.service import Service
from partita.errors import ConfigError
from partita.executors.desk import Desk
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


def test_an_order_goes_out_and_its_reply_comes_back(site: Site) -> None:
    asked(site, "ann")
    with site.link("ann") as link:
        message = link.poll({"computes": COMPUTES})
        shared = message["tensors"]["shared"]
        content = link.tensors(shared["digest"], shared["bytes"])
        counts = [
            link.reply(message["nonce"], encoded_reply(message["nonce"], reply_of("ann"))) for _ in "12"
        ]

    assert message["order"]["device"] == "ann"
    assert content == site.desk.tensors(shared["digest"])
    assert counts == [True, False]
    answer = site.desk.next_answer(0)
    assert isinstance(answer, Reply)
    assert answer.change is not None
    assert torch.equal(answer.change["u"], torch.ones(3))
    assert site.desk.next_answer(0) is None


def test_a_device_that_waits_gets_its_order_at_once(site: Site) -> None:
    import threading

    with site.link("ann") as link:
        opening = threading.Timer(0.3, asked, [site, "ann"])
        opening.start()
        message = link.poll({"computes": COMPUTES})
        opening.join()

    assert message["kind"] == "order"


@pytest.mark.parametrize("client", ["none", "stranger"])
def test_nobody_without_a_certificate_of_the_authority_is_connected(site: Site, client: str) -> None:
    if client == "none":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(site.folder / "ca" / keys.CA_CERTIFICATE)
    else:
        context = site.context(client)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        site.request(context, "POST", "/v1/poll", body=b"{}")
    assert site.hub.joined() == []


def test_an_older_version_of_tls_is_refused(site: Site) -> None:
    context = site.context("ann")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2

    with pytest.raises((ssl.SSLError, ConnectionError)):
        site.request(context, "POST", "/v1/poll", body=b"{}")


def test_a_revoked_device_is_refused(site: Site) -> None:
    with site.link("eve") as link, pytest.raises(Rejected, match="'eve' is revoked"):
        link.poll({"computes": COMPUTES})
    assert site.hub.joined() == []


def test_a_device_that_answers_as_another_is_refused(site: Site) -> None:
    asked(site, "ann", "bob")
    nonce = site.hub.message("bob")["nonce"]
    content = encoded_reply(nonce, reply_of("bob"))

    with site.link("bob", home="ann") as link, pytest.raises(Rejected, match="does not speak for 'bob'"):
        link.reply(nonce, content)
    with site.link("ann") as link, pytest.raises(Rejected, match="no such order"):
        link.reply(nonce, content)
    assert site.desk.next_answer(0) is None


def test_a_device_cannot_fetch_tensors_without_an_order_of_its_own(site: Site) -> None:
    asked(site, "ann")
    digest = site.hub.message("ann")["tensors"]["shared"]["digest"]

    with site.link("bob") as link, pytest.raises(Rejected, match="No open order"):
        link.tensors(digest, 1000)


def test_a_reply_of_an_earlier_round_does_not_count_in_a_later_one(site: Site) -> None:
    asked(site, "ann")
    old = site.hub.message("ann")["nonce"]
    content = encoded_reply(old, reply_of("ann"))
    site.desk.close()
    asked(site, "ann")
    new = site.hub.message("ann")["nonce"]

    with site.link("ann") as link:
        with pytest.raises(Rejected, match="no such order"):
            link.reply(old, content)
        # The recorded bytes under the nonce of the new order fail as well: they have the old one inside.
        with pytest.raises(Rejected, match="another nonce"):
            link.reply(new, content)
    answer = site.desk.next_answer(0)
    assert isinstance(answer, Failure)
    assert "another nonce" in answer.reason


@pytest.mark.parametrize(
    "change",
    [
        {"u": torch.ones(3), "v": torch.ones(2)},
        {"u": torch.ones(4)},
        {"u": torch.tensor([1.0, float("nan"), 1.0])},
    ],
    ids=["a personal name", "another shape", "a NaN"],
)
def test_a_reply_that_is_refused_is_a_failure_of_its_device(
    site: Site, change: dict[str, torch.Tensor]
) -> None:
    asked(site, "ann")
    nonce = site.hub.message("ann")["nonce"]

    with site.link("ann") as link, pytest.raises(Rejected):
        link.reply(nonce, encoded_reply(nonce, reply_of("ann", change=change)))

    answer = site.desk.next_answer(0)
    assert isinstance(answer, Failure)
    assert answer.reason.startswith("The reply was refused: ")


def test_a_reply_that_announces_ten_gigabytes_is_not_read(site: Site) -> None:
    asked(site, "ann")
    nonce = site.hub.message("ann")["nonce"]

    status, answer = site.request(
        site.context("ann"),
        "POST",
        f"/v1/replies/{nonce}",
        body=iter([b"x" * 1000]),
        headers={"Content-Length": str(10 * 10**9)},
    )

    assert status == 400
    assert b"10000000000" in answer
    assert isinstance(site.desk.next_answer(0), Failure)


def test_garbage_is_answered_with_an_error_and_harms_nothing(site: Site) -> None:
    rng, context = random.Random(3), site.context("ann")
    connection = http.client.HTTPSConnection("localhost", site.port, context=context, timeout=20)
    for _ in range(150):
        asked(site, "ann")
        nonce = site.hub.message("ann")["nonce"]
        for path in ("/v1/poll", f"/v1/replies/{nonce}", f"/v1/replies/{rng.randbytes(5).hex()}"):
            connection.request("POST", path, body=rng.randbytes(rng.randrange(200)))
            response = connection.getresponse()
            content = response.read()
            assert 400 <= response.status < 500 or json.loads(content)["kind"] == "refused"
    connection.close()
    asked(site, "ann")
    with site.link("ann") as link:
        assert link.poll({"computes": COMPUTES})["kind"] == "order"


@pytest.mark.parametrize(
    "request_",
    [{}, [], "x", {"computes": {}}, {"computes": {**COMPUTES, "model": "other"}}, {"computes": []}],
)
def test_a_device_that_computes_otherwise_is_refused(site: Site, request_: Any) -> None:
    status, answer = site.request(site.context("ann"), "POST", "/v1/poll", body=json.dumps(request_).encode())

    assert status == 200
    assert json.loads(answer)["kind"] == "refused"
    assert site.hub.joined() == []
    assert list(site.hub.refused()) == ["ann"]


def test_a_port_that_is_taken_is_one_clear_line(site: Site) -> None:
    hub = Hub("f" * 32, COMPUTES, Desk())

    with pytest.raises(ConfigError, match=f"Cannot listen on 127.0.0.1:{site.port}: "):
        Service(hub, "127.0.0.1", site.port, None, None).__enter__()


def test_a_server_of_another_authority_is_not_talked_to(site: Site) -> None:
    home = site.folder / "misled"
    home.mkdir(exist_ok=True)
    for name in (keys.DEVICE_KEY, keys.DEVICE_CERTIFICATE):
        (home / name).write_bytes((site.folder / "stranger" / name).read_bytes())
    (home / keys.CA_CERTIFICATE).write_bytes((site.folder / "other" / keys.CA_CERTIFICATE).read_bytes())

    with site.link("ann", home="misled") as link, pytest.raises(Unreachable, match="certificate"):
        link.poll({"computes": COMPUTES})


def test_attempts_are_repeated_for_ever_with_growing_random_delays() -> None:
    left, slept = [40], list[float]()

    def attempt() -> str:
        left[0] -= 1
        if left[0]:
            raise Unreachable("no route")
        return "here"

    assert persistently(attempt, slept.append) == "here"
    assert len(slept) == 39
    assert all(0.25 <= delay <= 0.5 for delay in slept[:1])
    assert all(30 <= delay <= 60 for delay in slept[10:])
    assert len(set(slept)) > 30


@pytest.mark.parametrize(
    ("url", "insecure"), [("http://a:1", False), ("https://a:1", True), ("a:1", False), ("https://", False)]
)
def test_an_address_that_is_not_encrypted_is_refused(url: str, insecure: bool) -> None:
    with pytest.raises(ConfigError, match="must be an address such as"):
        check_url(url, insecure=insecure)
