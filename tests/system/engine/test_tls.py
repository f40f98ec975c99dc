"""An engine with TLS: settings reach the server, and metrics say what became of the files."""

from pathlib import Path

import grpc
import pytest

from progressor.sdk import Client, EngineUnavailableError
from progressor.telemetry.instruments import Labels
from tests.support.certificates import Pki
from tests.support.engine.replica import running_replica
from tests.support.faults.env import until

FAILED: Labels = ("server", "failed")


async def test_an_engine_serves_with_tls_and_counts_the_reloads(
    database: str, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    server, client = pki.issue("server"), pki.issue("client")
    settings = {
        "server.tls_certificate": str(server.certificate),
        "server.tls_key": str(server.key),
        "server.tls_client_ca": str(pki.ca),
    }
    async with running_replica(database, settings) as replica:
        metrics = replica.engine.metrics
        credentials = client.read().channel_credentials()
        async with Client(replica.address, credentials=credentials) as calling:
            names = [it.name async for it in calling.namespaces.list()]
        without = grpc.ssl_channel_credentials(pki.ca.read_bytes())
        async with Client(replica.address, credentials=without, repeats=False) as refused:
            with pytest.raises(EngineUnavailableError):
                await refused.namespaces.get("orders")
        expires_at = metrics.tls_certificate_expires_at.snapshot().values
        at_first = metrics.tls_reloads.value(FAILED)
        pki.ca.write_text("garbage")
        await until(replica.points, lambda: metrics.tls_reloads.value(FAILED) > 0)

    assert names is not None
    assert [*expires_at] == [("server",)]
    assert (at_first, metrics.tls_reloads.value(FAILED)) == (0, 1)
