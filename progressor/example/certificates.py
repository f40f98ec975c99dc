"""A certificate authority for trying TLS out: its key never leaves the memory of this process."""

import dataclasses
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# For machines whose clocks differ.
_BEFORE = dt.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)

    def write(self, certificate: Path, key: Path) -> None:
        """Replace two files, each at once; only this user may read the key."""
        replace(certificate, self.certificate)
        replace(key, self.key)


class Authority:
    def __init__(self, name: str, *, now: dt.datetime, lifetime: dt.timedelta) -> None:
        self._now, self._lifetime = now, lifetime
        self._name, self._key = _named(name), ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.certificate = _pem(builder.sign(self._key, hashes.SHA256()))
        """As PEM."""

    def issue(self, name: str, *hosts: str, uris: Sequence[str] = ()) -> Issued:
        """Return a certificate for host names and addresses, for a server or a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        builder = self._builder(_named(name), key).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if alternatives:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Issued(_pem(certificate), private)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _BEFORE)
            .not_valid_after(self._now + self._lifetime)
        )


def replace(path: Path, content: bytes) -> None:
    """Replace a file at once; only this user may read it."""
    fresh = path.with_name(f"{path.name}.new")
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(content)
    fresh.rename(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
