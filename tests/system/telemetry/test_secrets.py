"""Secrets in every place that takes one, and a search of everything that is written.

The secrets are planted in a real engine with access control, its processor and its clients, all of
them at debug level. Then much goes wrong, also in PostgreSQL, whose errors quote rows.
"""

import asyncio
import base64
import dataclasses
import functools
import logging
import os
import re
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from progressor.sdk import (
    JSON,
    Client,
    Encrypted,
    Fail,
    Keys,
    NamespaceConfig,
    Processor,
    ProcessStatus,
    Role,
    Step,
    Trust,
)
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from tests.support.certificates import Pki
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import NOW_AND_THEN
from tests.support.telemetry.collector import Collector, running_collector

NAMESPACE = "secrets"
KEY = bytes(range(100, 132))
_BROKEN_AT = 99


def planted(place: str) -> str:
    """Return a secret that is a valid token, password and payload."""
    return f"PLANTED-{place}-SECRET"


@dataclasses.dataclass
class Plot:
    """Where the secrets are, and all that was written."""

    directory: Path
    secrets: dict[str, str] = dataclasses.field(default_factory=dict)
    written: dict[str, str] = dataclasses.field(default_factory=dict)

    def plant(self, place: str, secret: str = "") -> str:
        self.secrets[place] = secret or planted(place)
        return self.secrets[place]

    def file(self, name: str, content: str) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(content)
        return path

    def add(self, source: str, text: object) -> None:
        self.written[source] = f"{self.written.get(source, '')}\n{text}"

    def found(self) -> list[tuple[str, str]]:
        """Return which secret stands where, also as bytes of PostgreSQL and as base64."""
        return [
            (place, source)
            for place, secret in self.secrets.items()
            for source, text in self.written.items()
            if any(form in text for form in _forms(secret))
        ]


def _forms(secret: str) -> tuple[str, ...]:
    data = secret.encode()
    # Of the three ways in which base64 may be shifted, what does not depend on its neighbours.
    shifted = (base64.b64encode(b"\0" * it + data)[4:-4].decode() for it in range(3))
    return (secret, data.hex(), *shifted)


def settings_of(plot: Plot, collector: Collector) -> dict[str, str]:
    """Write the files of an engine, with a secret in each, and return its variables."""
    tls = Pki(plot.directory).issue("engine")
    assert tls.key is not None
    plot.plant("tls-key", tls.key.read_text().splitlines()[1])
    token = plot.file("processor-token", plot.plant("processor-token"))
    credentials = f'[processor_credentials.own]\ntls = false\ntoken_file = "{token}"\n'
    return {
        "PROGRESSOR_CONFIG": str(plot.file("config.toml", credentials)),
        "PROGRESSOR_ACCESS_ENABLED": "true",
        "PROGRESSOR_SERVER_TLS_CERTIFICATE": str(tls.certificate),
        "PROGRESSOR_SERVER_TLS_KEY": str(tls.key),
        "PROGRESSOR_TELEMETRY_OTLP_ENDPOINT": collector.endpoint,
        "PROGRESSOR_TELEMETRY_METRICS_INTERVAL_SECONDS": "0.2",
    }


def processor_of(plot: Plot) -> Processor[Any]:
    processor: Processor[Any] = Processor(NAMESPACE)
    words = {it: plot.plant(it) for it in ("state", "event", "answer", "memo", "timer", "message")}

    async def take(step: Step[Any]) -> str:
        await step.once("key", lambda: words["memo"])
        step.state = words["state"]
        step.emit(words["event"], format_version=_BROKEN_AT if step.process_id == "settle" else 0)
        step.set_timer(after=3600, args=words["timer"])
        step.notify("somebody", words["message"])
        if step.process_id == "fails":
            raise Fail("it fails")
        if step.process_id == "raises":
            step.args_as(int)
        return words["answer"]

    for register in (processor.init, processor.call, processor.notify, processor.repair):
        register(take)
    return processor


def break_statements(conninfo: str) -> None:
    """Have PostgreSQL refuse rows, which it then quotes."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for table, check in {
            "tasks": "process_id <> 'admit'",
            "events": f"format_version <> {_BROKEN_AT}",
            "schedules": "schedule_id <> 'admit'",
        }.items():
            alter = (
                f"ALTER TABLE progressor.{table} ADD CONSTRAINT broken CHECK ({check}) NOT VALID"
            )
            connection.execute(alter.encode())


async def told(plot: Plot, request: Any) -> None:
    """Send a request, and keep all that its error says."""
    try:
        await request
    except Exception as error:  # noqa: BLE001  # of any kind
        link: BaseException | None = error
        while link is not None:
            plot.add("errors of requests", f"{link!r} {link} {vars(link)}")
            link = link.__cause__ or link.__context__


async def command(plot: Plot, environment: Mapping[str, str], *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "progressor", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert output, arguments
    plot.add(f"progressor {' '.join(arguments[:2])}", output.decode())


async def play(plot: Plot, engine: ReplicaProcess, token: str, conninfo: str) -> None:
    """Send requests that succeed, fail, are refused, and break statements."""
    args = plot.plant("args")
    tokens = Trust(tokens=[plot.secrets["processor-token"]])
    async with (
        processor_of(plot).running("127.0.0.1:0", trust=tokens) as target,
        Client(engine.address, namespace=NAMESPACE, token=token, timeout=2) as client,
    ):
        await client.namespaces.create(
            NamespaceConfig(
                name=NAMESPACE,
                processor_targets=(target,),
                processor_credentials="own",
                retry_policy=NOW_AND_THEN,
            )
        )
        await client.access.create_token("another")
        for role in (Role.CALLER, Role.PAYLOAD_READER):
            await client.access.add_binding("token:admin", role, "*")
        await client.start("works", args, idempotency_key="once")
        await told(plot, client.call("works", args, idempotency_key="once"))
        await told(plot, client.start("fails", args))
        await told(plot, client.start("raises", args))
        await told(plot, client.call("raises", args))
        await asyncio.to_thread(break_statements, conninfo)
        for process_id in ("admit", "settle"):
            await told(plot, client.start(process_id, args))
        await told(plot, client.put("admit", status=ProcessStatus.RUNNING, state=args))
        await told(plot, client.get("absent"))
        keys = Keys(
            {"k": plot.plant("encryption-key", "encryption-key-of-32-characters!").encode()}
        )
        encrypted = Client(
            engine.address,
            namespace=NAMESPACE,
            token=token,
            timeout=3,
            codec=Encrypted(JSON, keys=keys),
        )
        async with encrypted:
            await told(plot, encrypted.get("works"))
            state = plot.plant("encrypted-state")
            await encrypted.put("sealed", status=ProcessStatus.FINISHED, state=state)
    for place, wrong in {
        "wrong-token": planted("wrong-token"),
        "wrong-api-token": f"{token[:-4]}AAAA",
        "jwt": f"eyJhbGciOiJub25lIn0.{planted('jwt')}.c2ln",
    }.items():
        async with Client(engine.address, token=plot.plant(place, wrong), timeout=3) as stranger:
            await told(plot, stranger.get("works"))


async def replace_files(plot: Plot, engine: ReplicaProcess) -> None:
    """Give the engine files that it cannot use, with secrets in them."""
    key = plot.plant("half-written-key")
    plot.file("engine.key", f"-----BEGIN PRIVATE KEY-----\n{key}")
    plot.file("processor-token", plot.plant("token-with-spaces", "PLANTED TOKEN WITH-SPACES"))
    words = "changed files not used"
    await eventually(lambda: engine.text.count(words) >= 2, pause=0.1)


async def commands(plot: Plot, engine: ReplicaProcess, variables: Mapping[str, str]) -> None:
    """Run commands that know the secrets; most of them fail."""
    token = str(plot.file("token", plot.secrets["api-token"]))
    decoding = str(plot.file("decode-token", plot.plant("decode-token")))
    bad = str(plot.file("bad-token", plot.plant("bad-token-file", "PLANTED BAD TOKEN-FILE")))
    run = functools.partial(command, plot, variables)
    at = ("--address", engine.address)
    get = ("get", "-n", NAMESPACE, "sealed", *at, "--token-file", token)
    for arguments in (
        ("config",),
        ("config", "--json"),
        ("doctor",),
        ("serve",),
        ("access", "whoami", *at, "--token-file", token),
        ("access", "whoami", *at, "--token-file", bad),
        ("access", "token", "list", *at, "--token-file", token, "--json"),
        (*get, "--decode-url", "http://127.0.0.1:1", "--decode-token-file", decoding),
        (*get, "--decode-url", "http://127.0.0.1:1", "--decode-token-file", bad),
        ("migrate", "--dsn", f"host=127.0.0.1 port=1 password={planted('dsn')}"),
        ("migrate", "--dsn", f"postgresql://u:{planted('dsn')}@127.0.0.1:bad/db"),
    ):
        await run(*arguments)


@pytest.mark.parametrize("form", ["console", pytest.param("json", marks=pytest.mark.slow)])
async def test_no_secret_is_written_anywhere(
    form: str, own_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    plot = Plot(tmp_path)
    dsn = make_conninfo(own_database, password=plot.plant("dsn"))
    token = plot.plant("api-token", create_first_admin(load().database, own_database, "admin"))
    async with running_collector() as collector:
        variables = settings_of(plot, collector)
        settings = {
            "log.level": "debug", "log.format": form, "telemetry.metrics_bind": "127.0.0.1:0",
        }  # fmt: skip
        async with running_process(
            dsn, tmp_path, settings, log=True, environment=variables
        ) as engine:
            await play(plot, engine, token, own_database)
            await replace_files(plot, engine)
            (metrics,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", engine.text)[:1]
            plot.add("metrics", await asyncio.to_thread(fetched, metrics))
            if form == "json":
                await commands(plot, engine, {**variables, "PROGRESSOR_DATABASE_DSN": dsn})
            engine.terminate()
            assert await engine.left() == 0
        plot.add("the log of the engine", engine.text)
        plot.add("spans", collector.spans)
        plot.add("pushed metrics", collector.pushes)
    plot.add("the log of the processor and the clients", [vars(it) for it in caplog.records])
    plot.add("that log, as text", caplog.text)

    assert "broken" in plot.written["the log of the engine"], "statements were refused"
    assert len(collector.spans) > 0
    assert len(plot.secrets) >= 16
    assert plot.found() == []


def fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310  # our own
        return str(answer.read().decode())


def test_the_search_would_find_each_form_of_a_secret(tmp_path: Path) -> None:
    plot = Plot(tmp_path)
    secret = plot.plant("place")
    for number, form in enumerate(
        (secret, secret.encode().hex(), base64.b64encode(b"ab" + secret.encode() + b"c").decode())
    ):
        plot.add(f"source {number}", f"before {form} after")

    assert plot.found() == [("place", f"source {number}") for number in range(3)]
