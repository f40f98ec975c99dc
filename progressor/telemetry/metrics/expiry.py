"""Reports when certificates expire."""

from collections.abc import Callable

from cryptography import x509

from progressor.telemetry.instruments import Gauge, Read


def report_expiry(gauge: Gauge, name: str, certificate: Callable[[], bytes | None]) -> None:
    """Export when the certificate in use expires, PEM with its chain; None: there is none."""
    gauge.read_from(_expiry(name, certificate))


def _expiry(name: str, certificate: Callable[[], bytes | None]) -> Read:
    def read() -> list[tuple[tuple[str, ...], float]]:
        try:
            chain = x509.load_pem_x509_certificates(certificate() or b"")
        except ValueError:  # none, or one that only gRPC understands
            return []
        return [((name,), min(it.not_valid_after_utc for it in chain).timestamp())]

    return read
