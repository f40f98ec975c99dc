"""The health check of the image: a real engine's health, asked for without a start of Python."""

import asyncio
import contextlib
import os
import re
import resource
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.engine.process import running_process

DOCKER = Path(__file__).parents[3] / "docker"
PROBE = DOCKER / "health-probe"
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.skipif(
    shutil.which("perl") is None, reason="no perl on the PATH: Debian's package perl-base has it"
)


async def probe(*arguments: str, bind: str | None = None) -> tuple[int, str]:
    """Return the exit code and the words of a probe."""
    environment = {"PATH": os.environ["PATH"]}
    if bind is not None:
        environment["PROGRESSOR_SERVER_BIND"] = bind
    process = await asyncio.create_subprocess_exec(
        "perl", str(PROBE), *arguments,
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_SECONDS):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode().strip()


@contextlib.asynccontextmanager
async def serving(
    bind: str = "127.0.0.1:0", *, status: int | None = health_pb2.HealthCheckResponse.SERVING
) -> AsyncIterator[str]:
    """Serve health, or nothing at all, and yield where."""
    server = grpc.aio.server()
    if status is not None:
        servicer = health.aio.HealthServicer()
        await servicer.set("", status)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port(bind)
    await server.start()
    try:
        yield bind if bind.startswith("unix:") else f"{bind.rpartition(':')[0]}:{port}"
    finally:
        await server.stop(None)


async def test_an_engine_that_serves_is_healthy(database: str, tmp_path: Path) -> None:
    async with running_process(database, tmp_path) as process:
        assert await probe(process.address) == (0, "serving")


@pytest.mark.parametrize(
    "status",
    [
        health_pb2.HealthCheckResponse.NOT_SERVING,
        health_pb2.HealthCheckResponse.UNKNOWN,
        None,
    ],
)
async def test_what_does_not_serve_is_not(status: int | None) -> None:
    async with serving(status=status) as address:
        code, said = await probe(address)

    assert code == 1
    assert said.startswith("not serving: ")


async def test_the_address_is_that_which_the_engine_listens_at(tmp_path: Path) -> None:
    async with serving("0.0.0.0:0") as address:  # what the image binds
        assert await probe(bind=address) == (0, "serving")
        assert await probe(bind=f"{address}, unix:/elsewhere") == (0, "serving")
    async with serving(f"unix:{tmp_path}/s") as address:
        assert await probe(bind=address) == (0, "serving")


async def test_an_address_without_a_listener_is_not_healthy() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        code, said = await probe(f"127.0.0.1:{held.getsockname()[1]}")

    assert (code, "refused" in said) == (1, True)


async def test_a_server_that_does_not_answer_is_not_healthy_after_a_while() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        code, said = await probe(f"127.0.0.1:{silent.getsockname()[1]}")

    assert (code, said) == (1, "not serving: no answer within 2 s")


async def test_a_server_that_speaks_something_else_is_not_healthy() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        code, said = await probe(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    assert code == 1
    assert "TLS" in said


async def test_the_probe_costs_a_fraction_of_a_start_of_python() -> None:
    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    async with serving() as address:
        before = spent()
        for _ in range(10):
            assert await probe(address) == (0, "serving")
        each = (spent() - before) / 10

    # 8 ms, against the 350 ms of `progressor health` (2-core reference machine).
    assert each < 0.1


def test_the_image_is_checked_by_the_probe_within_its_timeout() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    ignored = (DOCKER.parent / ".dockerignore").read_text().splitlines()
    [check] = re.findall(r"^HEALTHCHECK (.*)$", text.replace("\\\n", ""), re.MULTILINE)
    [copied] = re.findall(r"^COPY .*docker/health-probe (\S+)$", text, re.MULTILINE)
    [timeout] = re.findall(r"--timeout=(\d+)s", check)
    [patience] = re.findall(r"TIMEOUT_SECONDS = (\d+);", PROBE.read_text())

    assert check.endswith(f'CMD ["{copied}"]')
    assert "!docker/health-probe" in ignored
    assert int(patience) < int(timeout)
    # Perl is in every Debian, and so in the slim images; not in Alpine's.
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE)[-1].endswith("-slim")
    assert os.access(PROBE, os.X_OK)
