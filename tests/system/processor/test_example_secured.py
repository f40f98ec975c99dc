"""`progressor example-processor` with TLS and a token, as docs/how-to/deploy/tls.md shows it."""

import asyncio
import json
import sys
from pathlib import Path

from progressor.sdk import Client, Role, Tls
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.certificates import Pki
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import running_replica


async def test_an_order_is_started_with_tls_and_tokens_on_every_connection(
    database: str, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    engine_files, own_files = pki.issue("engine"), pki.issue("processor")
    shared, admin = tmp_path / "tokens", tmp_path / "admin"
    shared.write_text("a-token-of-the-engine")
    admin.write_text(create_first_admin(load(environment={}).database, database, "admin"))
    config = tmp_path / "engine.toml"
    config.write_text(
        f'[processor_credentials.internal]\nca = "{pki.ca}"\ntoken_file = "{shared}"\n'
    )
    settings = {
        "access.enabled": "true",
        "server.tls_certificate": str(engine_files.certificate),
        "server.tls_key": str(engine_files.key),
    }
    async with running_replica(database, settings, file=config) as replica:
        options = {
            "--bind": "127.0.0.1:0",
            "--tls-certificate": own_files.certificate,
            "--tls-key": own_files.key,
            "--trust-token-file": shared,
            "--credentials": "internal",
            "--engine": replica.address,
            "--engine-tls-ca": pki.ca,
            "--engine-token-file": admin,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "progressor", "example-processor"),
            *(str(it) for option in options.items() for it in option),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_SECONDS):
                events = [json.loads(await process.stderr.readline()) for _ in range(2)]
            async with Client(
                replica.address, namespace="orders", tls=Tls(ca=pki.ca), token=admin
            ) as client:
                await client.access.add_binding("token:admin", Role.CALLER, "*")
                started = await client.start("o1", {"item": "tea", "price": 7})
        finally:
            process.terminate()
            await process.wait()

    assert [it["event"] for it in events] == ["processor serves", "namespace registered"]
    assert started.response is not None
