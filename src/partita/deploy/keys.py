"""The files of keys and certificates, which `partita keys` makes.

A device makes its private key itself and hands out only a request, so no private key travels.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from partita.deploy.certificates import CA_DAYS, Authority, device_in, new_key, request_of
from partita.durable import PRIVATE, append_file, make_private_folder, replace_file
from partita.errors import ConfigError

if TYPE_CHECKING:
    from partita.protocol import DeviceId  # It imports torch, and takes seconds on a small machine.

CA_KEY, CA_CERTIFICATE, REVOKED = "ca.key", "ca.crt", "revoked.pem"
SERVER_KEY, SERVER_CERTIFICATE = "server.key", "server.crt"
DEVICE_KEY, DEVICE_REQUEST, DEVICE_CERTIFICATE = "device.key", "device.csr", "device.crt"
_ISSUED = "issued.jsonl"
"""The authority's list of the certificates of devices that it has signed."""
_PEM = serialization.Encoding.PEM


def make_ca(folder: Path, name: str) -> None:
    """Make an authority: its private key, its certificate, and an empty list of revoked certificates.

    Raises:
        ConfigError: the folder has an authority already.
    """
    _refuse_existing(folder / CA_KEY)
    authority = Authority.create(name)
    _write_key(folder / CA_KEY, authority.key)
    replace_file(folder / CA_CERTIFICATE, authority.certificate.public_bytes(_PEM))
    replace_file(folder / REVOKED, authority.revoking([]).public_bytes(_PEM))


def make_server(ca: Path, home: Path, hosts: Sequence[str], *, days: int) -> None:
    """Make the server's private key and certificate in its home, with what it checks devices by.

    Args:
        ca: the authority's folder.
        home: the server's home.
        hosts: the host names and addresses by which devices reach the server.
        days: how long the certificate is valid.

    Raises:
        ConfigError: the home has a key already, or a host or the time cannot be.
    """
    _check_days(days)
    _refuse_existing(home / SERVER_KEY)
    key, authority = new_key(), _authority(ca)
    try:
        certificate = authority.for_server(key.public_key(), hosts, days=days)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _write_key(home / SERVER_KEY, key)
    replace_file(home / SERVER_CERTIFICATE, certificate.public_bytes(_PEM))
    for name in (CA_CERTIFICATE, REVOKED):
        replace_file(home / name, (ca / name).read_bytes())


def make_request(home: Path, device: "DeviceId") -> Path:
    """Make a device's private key in its home, and return the file with the request for a certificate.

    Raises:
        ConfigError: the id is empty, or the home has a key already.
    """
    if not device:
        raise ConfigError("`--device` must not be empty.")
    _refuse_existing(home / DEVICE_KEY)
    key = new_key()
    _write_key(home / DEVICE_KEY, key)
    replace_file(home / DEVICE_REQUEST, request_of(key, device).public_bytes(_PEM))
    return home / DEVICE_REQUEST


def sign_request(ca: Path, request: Path, device: "DeviceId", *, days: int) -> bytes:
    """Return the certificate for a request, which must be for the device that the operator expects.

    Raises:
        ConfigError: the file is no request, is not signed with its own key, or is for another device; or the
            time cannot be.
    """
    _check_days(days)
    authority = _authority(ca)
    try:
        asked = x509.load_pem_x509_csr(request.read_bytes())
    except ValueError:
        raise ConfigError(f"`{request}` is not a certificate request.") from None
    if not asked.is_signature_valid:
        raise ConfigError(f"`{request}` is not signed with its own key.")
    if (named := device_in(asked)) != device:
        raise ConfigError(f"`{request}` is for device {named!r}, and not for {device!r}.")
    certificate = authority.for_device(asked.public_key(), device, days=days)
    issued = {"serial": f"{certificate.serial_number:x}", "device": device}
    append_file(ca / _ISSUED, json.dumps(issued).encode() + b"\n")
    return certificate.public_bytes(_PEM)


def revoke(ca: Path, device: "DeviceId") -> int:
    """Revoke every certificate of a device, and return their number.

    Raises:
        ConfigError: the authority has signed none for this device.
    """
    authority, issued = _authority(ca), ca / _ISSUED
    lines = [json.loads(line) for line in issued.read_text().splitlines()] if issued.exists() else []
    serials = {int(line["serial"], 16) for line in lines if line["device"] == device}
    if not serials:
        raise ConfigError(f"`{ca}` has signed no certificate for device {device!r}.")
    before = revoked_serials(ca / REVOKED, ca / CA_CERTIFICATE)
    replace_file(ca / REVOKED, authority.revoking(sorted(before | serials)).public_bytes(_PEM))
    return len(serials)


def revoked_serials(file: Path, certificate: Path) -> frozenset[int]:
    """Return the serial numbers in a list of revoked certificates.

    Raises:
        ConfigError: the file cannot be read, or the authority has not signed it.
    """
    ca = x509.load_pem_x509_certificate(certificate.read_bytes())
    try:
        listed = x509.load_pem_x509_crl(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"`{file}` is no list of revoked certificates: {error}.") from None
    key = ca.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not listed.is_signature_valid(key):
        raise ConfigError(f"`{file}` is not signed by the authority of `{certificate}`.")
    return frozenset(entry.serial_number for entry in listed)


def certificate_problem(home: Path, device: "DeviceId", now: datetime) -> str | None:
    """Return why a device cannot use the keys in its home at some time, None if it can."""
    for name in (DEVICE_KEY, DEVICE_CERTIFICATE, CA_CERTIFICATE):
        if not (home / name).exists():
            return f"`{home / name}` is missing"
    try:
        certificate = x509.load_pem_x509_certificate((home / DEVICE_CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((home / DEVICE_KEY).read_bytes(), None)
        certificate.verify_directly_issued_by(
            x509.load_pem_x509_certificate((home / CA_CERTIFICATE).read_bytes())
        )
    except Exception as error:  # An invalid signature, a damaged file: cryptography has many classes.
        return f"the keys in `{home}` cannot be used: {str(error) or type(error).__name__}"
    if certificate.public_key() != key.public_key():
        return f"`{DEVICE_CERTIFICATE}` is not for the key `{DEVICE_KEY}`"
    if (named := device_in(certificate)) != device:
        return f"the certificate is for device {named!r}, and not for {device!r}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        return (
            f"by this machine's clock, {now:%Y-%m-%d %H:%M} UTC, the certificate is not valid: it is from "
            f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        )
    return None


def _authority(folder: Path) -> Authority:
    if not (folder / CA_KEY).exists():
        raise ConfigError(f"`{folder}` has no `{CA_KEY}`: make an authority with `partita keys ca {folder}`.")
    key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"`{folder / CA_KEY}` is not a key that `partita keys ca` has made.")
    return Authority(key, x509.load_pem_x509_certificate((folder / CA_CERTIFICATE).read_bytes()))


def _check_days(days: int) -> None:
    if not 1 <= days <= CA_DAYS:
        raise ConfigError(f"`--days` must be 1 to {CA_DAYS}, as long as the authority, got {days}.")


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"`{path}` exists already: a key is not replaced. Move it away first.")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    make_private_folder(path.parent)
    replace_file(path, content, mode=PRIVATE)
