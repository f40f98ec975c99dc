"""An engine with TLS: settings reach the server, and metrics say what became of the files."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from progressor.cli.output import ExitCode
from progressor.sdk import (
    Client,
    EngineUnavailableError,
    InvalidRequestError,
    NamespaceConfig,
    Processor,
    ServerTls,
    Step,
    Tls,
    Trust,
)
from progressor.telemetry.instruments import Labels
from progressor.wire.tls import TlsFiles
from tests.support.certificates import Pki
from tests.support.engine.replica import running_replica
from tests.support.faults.env import until

orders = Processor("orders")


@orders.init
async def answer(step: Step[None]) -> str:
    return step.args_as(str)


FAILED: Labels = ("server", "failed")


async def command(address: str, tls: TlsFiles | None) -> int | None:
    """Return how `progressor health` ends, by the environment."""
    variables = {"PROGRESSOR_ADDRESS": address}
    if tls is not None:
        variables |= {
            "PROGRESSOR_TLS_CA": str(tls.ca),
            "PROGRESSOR_TLS_CERTIFICATE": str(tls.certificate),
            "PROGRESSOR_TLS_KEY": str(tls.key),
        }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "health",
        env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return await process.wait()


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
        known = Tls(ca=client.ca, certificate=client.certificate, key=client.key)
        async with Client(replica.address, tls=known) as calling:
            names = [it.name async for it in calling.namespaces.list()]
        ended = [await command(replica.address, client), await command(replica.address, None)]
        async with Client(replica.address, tls=Tls(ca=pki.ca), repeats=False) as refused:
            with pytest.raises(EngineUnavailableError):
                await refused.namespaces.get("orders")
        expires_at = metrics.tls_certificate_expires_at.snapshot().values
        at_first = metrics.tls_reloads.value(FAILED)
        pki.ca.write_text("garbage")
        await until(replica.points, lambda: metrics.tls_reloads.value(FAILED) > 0)

    assert names == []
    assert ended == [ExitCode.DONE, ExitCode.UNAVAILABLE]
    assert [*expires_at] == [("server",)]
    assert (at_first, metrics.tls_reloads.value(FAILED)) == (0, 1)


async def test_a_namespace_names_the_credentials_that_its_replicas_have(
    database: str, tmp_path: Path
) -> None:
    pki, token, file = Pki(tmp_path), tmp_path / "token", tmp_path / "progressor.toml"
    engine, processor = pki.issue("engine"), pki.issue("processor")
    token.write_text("secret")
    file.write_text(
        "[processor_credentials.internal]\n"
        f"ca = '{pki.ca}'\ncertificate = '{engine.certificate}'\nkey = '{engine.key}'\n"
        f"token_file = '{token}'\n"
    )
    assert processor.certificate is not None
    assert processor.key is not None
    tls = ServerTls(certificate=processor.certificate, key=processor.key, client_ca=pki.ca)
    trust = Trust(token_file=token, identities=["localhost"])
    async with (
        running_replica(database, file=file) as replica,
        orders.running("127.0.0.1:0", tls=tls, trust=trust) as target,
        Client(replica.address, namespace="orders") as client,
    ):
        plain = NamespaceConfig(name="orders", processor_targets=(target,))
        with pytest.raises(InvalidRequestError, match="must be one of internal"):
            await client.namespaces.create(dataclasses.replace(plain, processor_credentials="x"))
        await client.namespaces.create(dataclasses.replace(plain, processor_credentials="internal"))
        found = await client.namespaces.get("orders")
        started = await client.start("1", "tea")
        with pytest.raises(InvalidRequestError, match="must be one of internal"):
            await client.namespaces.update(
                dataclasses.replace(plain, processor_credentials="x"),
                fields=["processor_credentials"],
            )

    assert found.processor_credentials == "internal"
    assert started.response == "tea"
