"""The certificates and tokens of an engine: loaded at the start, reloaded when files change."""

import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from progressor import errors
from progressor.processor.credentials import Credentials
from progressor.settings.credentials import ProcessorCredentials
from progressor.settings.sections import Server, Telemetry
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.metrics.scrape_server import NewContext
from progressor.wire.tls import Reloaded, TlsFileError, TlsFiles, TlsMaterial, read_token

Content = TypeVar("Content")

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
    files = TlsFiles(
        certificate=server.tls_certificate, key=server.tls_key, ca=server.tls_client_ca
    )
    found = _loaded("server", files.paths, files.read, metrics, _SERVER_KEYS.__getitem__)
    _report_expiry("server", metrics, lambda: found.content.certificate)
    return found


def metrics_context(
    certificate: Reloaded[TlsMaterial] | None, server: Server, telemetry: Telemetry
) -> NewContext | None:
    """Return what encrypts scrapes by the certificate of the server; None: they are not."""
    if certificate is None or not telemetry.metrics_tls:
        return None
    assert server.tls_certificate is not None, "a server with TLS has a certificate"
    assert server.tls_key is not None, "a server with TLS has a key"
    contexts = [_context(server.tls_certificate, server.tls_key)]

    def renew(_: TlsMaterial) -> None:
        # Files that have changed since they were checked will be reloaded once more.
        with contextlib.suppress(OSError):
            contexts[0] = _context(certificate_path, key_path)

    certificate_path, key_path = server.tls_certificate, server.tls_key
    certificate.changed = renew
    return lambda: contexts[0]


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def processor_credentials(
    tables: Mapping[str, ProcessorCredentials], metrics: Metrics
) -> Mapping[str, Reloaded[Credentials]]:
    """Load the credentials for processors, by their names.

    Raises:
        ConfigError: A file cannot be used.
    """
    return {name: _credentials(name, table, metrics) for name, table in tables.items()}


def _credentials(name: str, table: ProcessorCredentials, metrics: Metrics) -> Reloaded[Credentials]:
    files = TlsFiles(ca=table.ca, certificate=table.certificate, key=table.key)
    token_file = table.token_file

    def read() -> Credentials:
        return Credentials(
            tls=files.read() if table.tls else None,
            server_name=table.server_name,
            token="" if token_file is None else read_token(token_file),
        )

    def key_of(field: str) -> str:
        return f"{prefix}.{'token_file' if field == 'token' else field}"

    prefix = f"processor_credentials.{name}"
    paths = files.paths if token_file is None else (*files.paths, token_file)
    found = _loaded(prefix, paths, read, metrics, key_of)
    if table.certificate is not None:
        _report_expiry(prefix, metrics, lambda: _certificate(found.content))
    return found


def _certificate(credentials: Credentials) -> bytes | None:
    return None if credentials.tls is None else credentials.tls.certificate


def _loaded(
    name: str,
    paths: Sequence[Path],
    read: Callable[[], Content],
    metrics: Metrics,
    key_of: Callable[[str], str],
) -> Reloaded[Content]:
    def count(result: str) -> None:
        metrics.tls_reloads.add(1, (name, result))

    found = Reloaded(paths, read, name=name, counted=count)
    try:
        found.load()
    except TlsFileError as error:
        raise errors.ConfigError(key_of(error.field), error.why) from error
    # For an alert, a series that appears with one has not grown.
    metrics.tls_reloads.add(0, (name, "failed"))
    return found


def _report_expiry(name: str, metrics: Metrics, certificate: Callable[[], bytes | None]) -> None:
    # Takes 80 ms to import, which an engine without certificates does not need.
    from progressor.telemetry.metrics.expiry import report_expiry  # noqa: PLC0415  # needs a library of the engine

    report_expiry(metrics.tls_certificate_expires_at, name, certificate)
