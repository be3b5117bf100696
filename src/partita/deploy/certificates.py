"""X.509 certificates of a deployment: of its authority, of the server and of devices; no files here.

A device's id is the URI `urn:partita:device:ID` in the alternative names of its certificate, so certificates
of another authority work too.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from partita.protocol import DeviceId  # It imports torch, and takes seconds on a small machine.

_URI = "urn:partita:device:"
_EARLY = timedelta(minutes=5)
"""Certificates are valid from a little before they are made: clocks differ."""
CA_DAYS = 3650
"""How long an authority is valid, and at most a certificate."""
_HOST = re.compile("[A-Za-z0-9_.*-]+")
_MAX_COMMON_NAME = 64


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its private key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, name: str) -> "Authority":
        """Return a new authority."""
        key, subject = new_key(), _name(name)
        builder = _builder(subject, subject, key.public_key(), days=CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(is_authority=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    def for_server(
        self, key: ec.EllipticCurvePublicKey, hosts: Sequence[str], *, days: int
    ) -> x509.Certificate:
        """Return the certificate of a server that is reached by some host names or addresses.

        Raises:
            ValueError: a host is neither.
        """
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        return self._signed(key, hosts[0], names, ExtendedKeyUsageOID.SERVER_AUTH, days)

    def for_device(
        self, key: CertificatePublicKeyTypes, device: "DeviceId", *, days: int
    ) -> x509.Certificate:
        """Return the certificate of a device."""
        return self._signed(key, device, _device_name(device), ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def revoking(self, serials: Iterable[int]) -> x509.CertificateRevocationList:
        """Return the signed list of revoked certificates with these serial numbers."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now - _EARLY).next_update(now + timedelta(days=CA_DAYS))
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self.key, hashes.SHA256())

    def _signed(
        self,
        key: CertificatePublicKeyTypes,
        name: str,
        names: x509.SubjectAlternativeName,
        purpose: x509.ObjectIdentifier,
        days: int,
    ) -> x509.Certificate:
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = _builder(_name(name), self.certificate.subject, key, days=days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(names, critical=False).add_extension(own, critical=False)
        builder = builder.add_extension(_usage(is_authority=False), critical=True)
        # A device's certificate is not accepted as a server's, nor the other way round.
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def request_of(key: ec.EllipticCurvePrivateKey, device: "DeviceId") -> x509.CertificateSigningRequest:
    """Return a device's request for a certificate, signed with its own key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(device))
    return builder.add_extension(_device_name(device), critical=False).sign(key, hashes.SHA256())


@dataclass(frozen=True)
class Identity:
    """The owner of a certificate."""

    device: "DeviceId | None"
    """None: the certificate does not name exactly one device."""
    serial: int
    expires: datetime


def identity_in(certificate: bytes) -> Identity:
    """Return the owner of a certificate in DER, the signature of which has been checked."""
    loaded = x509.load_der_x509_certificate(certificate)
    return Identity(device_in(loaded), loaded.serial_number, loaded.not_valid_after_utc)


def device_in(named: x509.Certificate | x509.CertificateSigningRequest) -> "DeviceId | None":
    """Return the device that a certificate or a request names; None unless it names exactly one."""
    try:
        names = named.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    found = [unquote(uri.removeprefix(_URI)) for uri in uris if uri.startswith(_URI)]
    return found[0] or None if len(found) == 1 == len(list(names)) else None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - _EARLY)
    builder = builder.not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    """Return a subject: for people to read, and limited in length; nothing is decided by it."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_COMMON_NAME])])


def _device_name(device: "DeviceId") -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{_URI}{quote(device, safe='')}")])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise ValueError(
                f"A host must be an address or a name in ASCII, such as xn--hst-sna.de, got {host!r}."
            ) from None
        return x509.DNSName(host)
