"""Mutual TLS 1.3 on both sides, and which device has sent a request."""

import ipaddress
import ssl
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from partita.deploy import keys
from partita.deploy.certificates import identity_in
from partita.errors import ConfigError
from partita.protocol import DeviceId

identity_of = lru_cache(maxsize=4096)(identity_in)
"""The owner of a certificate; a device sends the same one with every request."""


def server_context(home: Path) -> ssl.SSLContext:
    """Return the server's side of TLS: only devices with a certificate of the authority are connected."""
    return _context(ssl.PROTOCOL_TLS_SERVER, home, keys.SERVER_CERTIFICATE, keys.SERVER_KEY, by="server")


def device_context(home: Path) -> ssl.SSLContext:
    """Return a device's side of TLS: only a server with a certificate of the authority is talked to."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, home, keys.DEVICE_CERTIFICATE, keys.DEVICE_KEY, by="request")


def _context(protocol: int, home: Path, certificate: str, key: str, *, by: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    for name in (keys.CA_CERTIFICATE, certificate, key):
        if not (home / name).exists():
            raise ConfigError(f"`{home / name}` is missing: `partita keys {by}` makes it.")
    try:
        context.load_verify_locations(home / keys.CA_CERTIFICATE)
        context.load_cert_chain(home / certificate, home / key)
    except ssl.SSLError as error:
        raise ConfigError(f"The keys in `{home}` cannot be used: {error}.") from None
    return context


class Revocations:
    """The revoked certificates of a server's home, read again when the file has changed.

    Raises:
        ConfigError: the file is missing, or the authority has not signed it.
    """

    def __init__(self, home: Path) -> None:
        self._file = home / keys.REVOKED
        self._certificate = home / keys.CA_CERTIFICATE
        self._read: tuple[int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self.check(0)

    def check(self, serial: int) -> bool:
        """Return whether a certificate with this serial number is revoked."""
        try:
            state = self._file.stat()
        except OSError as error:
            raise ConfigError(f"`{self._file}` cannot be read: {error.strerror}.") from None
        version = state.st_mtime_ns, state.st_ino
        if version != self._read:
            self._serials = keys.revoked_serials(self._file, self._certificate)
            self._read = version
        return serial in self._serials


def device_of(certificate: bytes | None, revoked: Revocations) -> DeviceId:
    """Return the device that a certificate in DER is of.

    Raises:
        PermissionError: it names no device, has expired since it was connected, or is revoked.
    """
    identity = identity_of(certificate) if certificate else None
    if identity is None or identity.device is None:
        raise PermissionError("The certificate names no device.")
    if identity.expires < datetime.now(UTC):
        raise PermissionError(f"The certificate of device {identity.device!r} has expired.")
    if revoked.check(identity.serial):
        raise PermissionError(f"The certificate of device {identity.device!r} is revoked.")
    return identity.device


def check_loopback(host: str) -> None:
    """Raise unless a host is this machine itself: without TLS nothing leaves it.

    >>> check_loopback("0.0.0.0")
    Traceback (most recent call last):
        ...
    partita.errors.ConfigError: `--insecure` is only for 127.0.0.1, ::1 and localhost, got '0.0.0.0'.
    """
    try:
        is_own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_own = host == "localhost"
    if not is_own:
        raise ConfigError(f"`--insecure` is only for 127.0.0.1, ::1 and localhost, got {host!r}.")
