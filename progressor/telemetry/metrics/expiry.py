"""Reports when certificates expire."""

from cryptography import x509

from progressor.telemetry.instruments import Gauge, Read
from progressor.wire.tls import Reloaded, TlsMaterial


def report_expiry(gauge: Gauge, name: str, files: Reloaded[TlsMaterial]) -> None:
    """Export when the certificate of some files expires, as of the last reload."""
    gauge.read_from(_expiry(name, files))


def _expiry(name: str, files: Reloaded[TlsMaterial]) -> Read:
    def read() -> list[tuple[tuple[str, ...], float]]:
        try:
            chain = x509.load_pem_x509_certificates(files.content.certificate or b"")
        except ValueError:  # none, or one that only gRPC understands
            return []
        return [((name,), min(it.not_valid_after_utc for it in chain).timestamp())]

    return read
