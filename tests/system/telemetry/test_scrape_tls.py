"""The metrics endpoint over HTTPS: a scrape, a renewed certificate, and clients without TLS."""

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from progressor.engine.certificates import metrics_context, server_certificate
from progressor.settings.addresses import http_bind
from progressor.settings.sections import Server, Telemetry
from progressor.telemetry.metrics import scrape_server
from progressor.telemetry.metrics.prometheus import MetricsEndpoint
from progressor.telemetry.metrics.registry import Metrics
from progressor.wire.tls import Reloaded, TlsMaterial
from tests.support.certificates import Pki
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.telemetry.metrics import filled_metrics


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@contextlib.contextmanager
def serving(pki: Pki) -> Iterator[tuple[int, Reloaded[TlsMaterial]]]:
    files = pki.issue("server")
    server = Server(tls_certificate=files.certificate, tls_key=files.key)
    certificate = server_certificate(server, Metrics())
    assert certificate is not None
    context = metrics_context(certificate, server, Telemetry(metrics_tls=True))
    bind = http_bind("key", "127.0.0.1:0")
    endpoint = MetricsEndpoint(filled_metrics(), bind, tls=context)
    url = endpoint.open()
    assert url.startswith("https://")
    yield int(url.removesuffix("/metrics").rpartition(":")[2]), certificate
    endpoint.close()


def status_at(port: int, ca: Path) -> int:
    context = ssl.create_default_context(cafile=ca)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=context, timeout=PATIENCE_SECONDS
    )
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert b"progressor_" in response.read()
        return response.status


def test_a_scrape_is_encrypted_and_follows_the_certificate(pki: Pki) -> None:
    with serving(pki) as (port, certificate):
        first = status_at(port, pki.ca)
        pki.renew()
        pki.issue("server")
        certificate.look()

        assert (first, status_at(port, pki.ca)) == (200, 200)


def test_clients_without_tls_or_without_a_word_hold_up_nobody(
    pki: Pki, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrape_server, "REQUEST_SECONDS", 3)
    with serving(pki) as (port, _), contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
            for _ in range(scrape_server.CONNECTIONS_MAX + 5)
        ]
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

        assert status_at(port, pki.ca) == 200
        for each in (*silent, plain):
            with contextlib.suppress(ConnectionError):
                while each.recv(4096):
                    pass
    assert caplog.records == []
