"""Keys and certificates: who is heard, under which name."""

import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from partita.deploy import keys, tls
from partita.deploy.certificates import Authority, device_in, new_key, request_of
from partita.errors import ConfigError

DAYS = 30


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    keys.make_ca(tmp_path / "ca", "pilot")
    return tmp_path / "ca"


def device_home(ca: Path, home: Path, device: str) -> Path:
    """Make a device's home with a signed certificate."""
    request = keys.make_request(home, device)
    (home / keys.DEVICE_CERTIFICATE).write_bytes(keys.sign_request(ca, request, device, days=DAYS))
    (home / keys.CA_CERTIFICATE).write_bytes((ca / keys.CA_CERTIFICATE).read_bytes())
    return home


def der(home: Path) -> bytes:
    certificate = x509.load_pem_x509_certificate((home / keys.DEVICE_CERTIFICATE).read_bytes())
    return certificate.public_bytes(serialization.Encoding.DER)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[str | None, bytes | None]:
    """Shake hands in memory; return the version of TLS and the client's certificate as the server sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=host)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (other, one):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2
    return one.version(), one.getpeercert(binary_form=True)


@pytest.mark.parametrize("device", ["ann", "form 3/ä", "x" * 300, "urn:partita:device:bob", "a%2Fb"])
def test_a_device_is_known_by_its_certificate_under_exactly_its_id(
    ca: Path, tmp_path: Path, device: str
) -> None:
    home = device_home(ca, tmp_path / "home", device)
    keys.make_server(ca, tmp_path / "server", ["localhost", "10.0.0.7"], days=DAYS)

    version, certificate = handshake(
        tls.server_context(tmp_path / "server"), tls.device_context(home), "10.0.0.7"
    )

    assert version == "TLSv1.3"
    assert tls.device_of(certificate, tls.Revocations(tmp_path / "server")) == device


def test_private_keys_are_readable_by_their_owner_alone_and_do_not_travel(ca: Path, tmp_path: Path) -> None:
    home = device_home(ca, tmp_path / "home", "ann")

    for key in (ca / keys.CA_KEY, home / keys.DEVICE_KEY):
        assert key.stat().st_mode & 0o077 == 0
    assert b"PRIVATE" not in (home / keys.DEVICE_REQUEST).read_bytes()


def test_a_client_without_a_certificate_or_of_another_authority_is_refused(ca: Path, tmp_path: Path) -> None:
    keys.make_server(ca, tmp_path / "server", ["localhost"], days=DAYS)
    keys.make_ca(tmp_path / "other", "other")
    stranger = device_home(tmp_path / "other", tmp_path / "stranger", "ann")
    (stranger / keys.CA_CERTIFICATE).write_bytes((ca / keys.CA_CERTIFICATE).read_bytes())
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.load_verify_locations(ca / keys.CA_CERTIFICATE)

    for client in (tls.device_context(stranger), nobody):
        with pytest.raises(ssl.SSLError):
            handshake(tls.server_context(tmp_path / "server"), client, "localhost")


def test_a_device_refuses_a_server_of_another_authority_or_host_and_another_device(
    ca: Path, tmp_path: Path
) -> None:
    home = device_home(ca, tmp_path / "home", "ann")
    keys.make_ca(tmp_path / "other", "other")
    keys.make_server(tmp_path / "other", tmp_path / "false", ["localhost"], days=DAYS)
    keys.make_server(ca, tmp_path / "server", ["localhost"], days=DAYS)
    # A device that plays the server with its own certificate, which names no host and has another purpose.
    player = device_home(ca, tmp_path / "player", "bob")
    for old, new in ((keys.DEVICE_KEY, keys.SERVER_KEY), (keys.DEVICE_CERTIFICATE, keys.SERVER_CERTIFICATE)):
        (player / new).write_bytes((player / old).read_bytes())

    for server, host in (("false", "localhost"), ("server", "other.example"), ("player", "bob")):
        with pytest.raises(ssl.SSLError):
            handshake(tls.server_context(tmp_path / server), tls.device_context(home), host)


def test_a_revoked_certificate_is_refused_at_once_and_others_are_not(ca: Path, tmp_path: Path) -> None:
    ann, bob = (device_home(ca, tmp_path / name, name) for name in ("ann", "bob"))
    keys.make_server(ca, tmp_path / "server", ["localhost"], days=DAYS)
    revoked = tls.Revocations(tmp_path / "server")
    assert tls.device_of(der(ann), revoked) == "ann"

    assert keys.revoke(ca, "ann") == 1
    (tmp_path / "server" / keys.REVOKED).write_bytes((ca / keys.REVOKED).read_bytes())

    with pytest.raises(PermissionError, match="'ann' is revoked"):
        tls.device_of(der(ann), revoked)
    assert tls.device_of(der(bob), revoked) == "bob"


@pytest.mark.slow
def test_a_certificate_that_expires_while_it_is_connected_is_refused(ca: Path, tmp_path: Path) -> None:
    keys.make_server(ca, tmp_path / "server", ["localhost"], days=DAYS)
    revoked = tls.Revocations(tmp_path / "server")
    signed = keys._authority(ca).for_device(new_key().public_key(), "ann", days=0)  # Valid until now.
    expired = signed.public_bytes(serialization.Encoding.DER)

    assert tls.device_of(der(device_home(ca, tmp_path / "other", "ann")), revoked) == "ann"
    time.sleep(1.1)  # Certificates have whole seconds.
    with pytest.raises(PermissionError, match="'ann' has expired"):
        tls.device_of(expired, revoked)


def test_an_empty_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        keys.make_request(tmp_path / "home", "")

    assert not (tmp_path / "home").exists()


def test_a_list_of_revoked_certificates_of_another_authority_is_refused(ca: Path, tmp_path: Path) -> None:
    keys.make_server(ca, tmp_path / "server", ["localhost"], days=DAYS)
    keys.make_ca(tmp_path / "other", "pilot")
    (tmp_path / "server" / keys.REVOKED).write_bytes((tmp_path / "other" / keys.REVOKED).read_bytes())

    with pytest.raises(ConfigError, match="is not signed by the authority"):
        tls.Revocations(tmp_path / "server")


def test_only_the_request_that_the_operator_expects_is_signed(ca: Path, tmp_path: Path) -> None:
    request = keys.make_request(tmp_path / "home", "bob")
    broken = tmp_path / "broken.csr"
    broken.write_text("no request")

    with pytest.raises(ConfigError, match="is for device 'bob', and not for 'ann'"):
        keys.sign_request(ca, request, "ann", days=DAYS)
    with pytest.raises(ConfigError, match="is not a certificate request"):
        keys.sign_request(ca, broken, "ann", days=DAYS)
    assert not (ca / "issued.jsonl").exists()


def test_a_certificate_with_several_names_is_no_device() -> None:
    authority, key = Authority.create("pilot"), new_key()
    server = authority.for_server(key.public_key(), ["localhost"], days=DAYS)
    names = [x509.UniformResourceIdentifier(f"urn:partita:device:{name}") for name in ("ann", "bob")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(server.subject)
    both = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)

    assert device_in(server) is None
    assert device_in(both.sign(key, server.signature_hash_algorithm)) is None
    assert device_in(request_of(key, "ann")) == "ann"


@pytest.mark.parametrize(
    ("host", "days"), [("höst.de", 1), ("a host", 1), ("", 1), ("localhost", 0), ("::1", 9999)]
)
def test_keys_that_cannot_be_are_one_clear_line_and_nothing_is_written(
    ca: Path, tmp_path: Path, host: str, days: int
) -> None:
    with pytest.raises(ConfigError, match="must be"):
        keys.make_server(ca, tmp_path / "server", [host], days=days)

    assert not (tmp_path / "server").exists()


def test_a_certificate_is_valid_for_a_day_at_least(ca: Path, tmp_path: Path) -> None:
    request = keys.make_request(tmp_path / "ann", "ann")

    with pytest.raises(ConfigError, match="1 to 3650"):
        keys.sign_request(ca, request, "ann", days=-5)


def test_a_key_is_never_replaced(ca: Path, tmp_path: Path) -> None:
    keys.make_request(tmp_path / "home", "ann")
    before = (tmp_path / "home" / keys.DEVICE_KEY).read_bytes()

    for again in (lambda: keys.make_ca(ca, "x"), lambda: keys.make_request(tmp_path / "home", "ann")):
        with pytest.raises(ConfigError, match="exists already"):
            again()
    assert (tmp_path / "home" / keys.DEVICE_KEY).read_bytes() == before


def test_the_problems_of_a_device_with_its_keys_are_named(ca: Path, tmp_path: Path) -> None:
    home, now = device_home(ca, tmp_path / "home", "ann"), datetime.now(UTC)
    bob = device_home(ca, tmp_path / "bob", "bob")

    assert keys.certificate_problem(home, "ann", now) is None
    assert "and not for 'bob'" in str(keys.certificate_problem(home, "bob", now))
    assert "clock" in str(keys.certificate_problem(home, "ann", now + timedelta(days=DAYS + 1)))
    assert "missing" in str(keys.certificate_problem(tmp_path, "ann", now))
    (home / keys.DEVICE_CERTIFICATE).write_bytes((bob / keys.DEVICE_CERTIFICATE).read_bytes())
    assert "is not for the key" in str(keys.certificate_problem(home, "bob", now))


def test_revoking_a_device_without_a_certificate_is_an_error(ca: Path) -> None:
    with pytest.raises(ConfigError, match="has signed no certificate for device 'eve'"):
        keys.revoke(ca, "eve")


def test_issued_certificates_are_listed_by_serial_number(ca: Path, tmp_path: Path) -> None:
    home = device_home(ca, tmp_path / "home", "ann")

    (line,) = (ca / "issued.jsonl").read_text().splitlines()
    assert json.loads(line) == {"serial": f"{tls.identity_of(der(home)).serial:x}", "device": "ann"}


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "example.org", "::"])
def test_insecure_is_refused_beyond_this_machine(host: str) -> None:
    with pytest.raises(ConfigError, match="is only for 127.0.0.1"):
        tls.check_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_insecure_is_possible_on_this_machine(host: str) -> None:
    tls.check_loopback(host)
