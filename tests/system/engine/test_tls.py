"""An engine with TLS: settings reach the server, and metrics say what became of the files."""

import asyncio
import dataclasses
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from progressor.cli.output import ExitCode
from progressor.example.certificates import replace
from progressor.sdk import (
    Client,
    EngineUnavailableError,
    InvalidRequestError,
    NamespaceConfig,
    Processor,
    RetryPolicy,
    ServerTls,
    Step,
    Tls,
    Trust,
)
from progressor.telemetry.instruments import Counter, Labels
from progressor.wire.tls import TlsFiles
from tests.support.certificates import Pki
from tests.support.engine.replica import running_replica
from tests.support.faults.env import until

orders = Processor("orders")


@orders.init
@orders.call
async def answer(step: Step[None]) -> str:
    return step.args_as(str)


RELOADED = ("server", "processor_credentials.internal")
FAILED: Labels = ("server", "failed")


def has_grown(counter: Counter, labels: Labels, then: float) -> bool:
    return counter.value(labels) > then


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


@pytest.mark.parametrize(
    "rotations", [2, pytest.param(60, marks=pytest.mark.slow, id="for a minute")]
)
async def test_no_call_fails_while_all_certificates_between_client_and_processor_are_renewed(
    own_database: str, tmp_path: Path, rotations: int
) -> None:
    pki, file = Pki(tmp_path), tmp_path / "progressor.toml"
    parties = {it: pki.issue(it) for it in ("server", "client", "engine", "processor")}
    paths = {name: (str(it.certificate), str(it.key)) for name, it in parties.items()}
    file.write_text(
        "[server]\n"
        f"tls_certificate = '{paths['server'][0]}'\ntls_key = '{paths['server'][1]}'\n"
        f"tls_client_ca = '{pki.ca}'\n"
        "connection_age_max_seconds = 10\n"
        "[processor_credentials.internal]\n"
        f"ca = '{pki.ca}'\ncertificate = '{paths['engine'][0]}'\nkey = '{paths['engine'][1]}'\n"
    )
    served = ServerTls(
        certificate=paths["processor"][0], key=paths["processor"][1], client_ca=pki.ca
    )
    tls = Tls(ca=pki.ca, certificate=paths["client"][0], key=paths["client"][1])
    done, counts = asyncio.Event(), [0, 0]

    async def load(number: int, address: str) -> None:
        async with Client(
            address, namespace="chain", tls=tls, session=number == 0, repeats=False
        ) as client:
            process_id = f"p-{number}"
            await client.start(process_id, "")
            while not done.is_set():
                await client.call(process_id, "tea")
                counts[number] += 1

    async with (
        running_replica(own_database, {"scanner.interval_seconds": "0.05"}, file=file) as replica,
        orders.running("127.0.0.1:0", tls=served, trust=Trust(identities=["localhost"])) as target,
        asyncio.TaskGroup() as group,
    ):
        async with Client(replica.address, tls=tls) as client:
            await client.namespaces.create(
                NamespaceConfig(
                    name="chain",
                    processor_targets=(target,),
                    processor_credentials="internal",
                    retry_policy=RetryPolicy(attempts_max=1),
                )
            )
        reloads = replica.engine.metrics.tls_reloads
        for number in range(len(counts)):
            group.create_task(load(number, replica.address))
        for rotation in range(rotations):
            before = [reloads.value((it, "ok")) for it in RELOADED]
            for name in parties:
                pki.issue(name)
            if rotation == 0:
                replace(parties["server"].key or file, b"garbage")
                await until(replica.points, lambda: reloads.value(FAILED) > 0)
                pki.issue("server")
            for name, then in zip(RELOADED, before, strict=True):
                more = functools.partial(has_grown, reloads, (name, "ok"), then)
                await until(replica.points, more)
        done.set()

    assert all(it > 0 for it in counts)
    assert reloads.value(FAILED) == 1
