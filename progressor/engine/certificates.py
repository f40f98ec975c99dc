"""The certificates of an engine: loaded at the start, reloaded when their files change."""

from collections.abc import Mapping
from types import MappingProxyType

from progressor import errors
from progressor.settings.sections import Server
from progressor.telemetry.metrics.registry import Metrics
from progressor.wire.tls import Reloaded, TlsFileError, TlsFiles, TlsMaterial

_SERVER = "server"
_SERVER_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "certificate": "server.tls_certificate",
        "key": "server.tls_key",
        "ca": "server.tls_client_ca",
    }
)


def server_certificate(server: Server, metrics: Metrics) -> Reloaded[TlsMaterial] | None:
    """Load the certificate of the server and the authorities of its clients; None: no TLS.

    Raises:
        ConfigError: A file cannot be used.
    """
    if server.tls_certificate is None:
        return None
    # Takes 60 ms to import, which an engine without TLS does not need.
    from progressor.telemetry.metrics.expiry import report_expiry  # noqa: PLC0415

    files = TlsFiles(
        certificate=server.tls_certificate, key=server.tls_key, ca=server.tls_client_ca
    )
    found = Reloaded(
        files.paths,
        files.read,
        name=_SERVER,
        counted=lambda result: metrics.tls_reloads.add(1, (_SERVER, result)),
    )
    try:
        found.load()
    except TlsFileError as error:
        raise errors.ConfigError(_SERVER_KEYS[error.field], error.why) from error
    # For an alert, a series that appears with one has not grown.
    metrics.tls_reloads.add(0, (_SERVER, "failed"))
    report_expiry(metrics.tls_certificate_expires_at, _SERVER, found)
    return found
