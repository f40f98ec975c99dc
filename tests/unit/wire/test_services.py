"""Health and reflection: what does not parse is refused, and leaves nothing in the log."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from progressor.api.server.health import Health
from progressor.wire.services import HEALTH_NAME, add_services

CORRUPT = b"\x0a\x05ab"
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"

Ask = Callable[[grpc.aio.Channel], Any]


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    health = Health([""])
    health.set_serving(serving=True)
    add_services(server, health, ())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def corrupt() -> AsyncIterator[bytes]:
    yield CORRUPT


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda it: it.unary_unary(f"{HEALTH}Check")(CORRUPT), "INVALID_ARGUMENT"),
        (lambda it: it.unary_stream(f"{HEALTH}Watch")(CORRUPT).read(), "INVALID_ARGUMENT"),
        (lambda it: it.stream_stream(REFLECTION)(corrupt()).read(), "INVALID_ARGUMENT"),
        (lambda it: it.unary_unary(f"{HEALTH}List")(b""), "UNIMPLEMENTED"),
    ],
)
async def test_what_cannot_be_parsed_or_is_not_there_is_refused_without_a_trace_in_the_log(
    channel: grpc.aio.Channel, ask: Ask, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask(channel)

    assert refused.value.code().name == code
    assert [it for it in caplog.records if it.levelno >= logging.WARNING] == []


async def test_what_can_be_parsed_is_answered(channel: grpc.aio.Channel) -> None:
    health: Any = health_pb2_grpc.HealthStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    untyped: Any = channel
    reflecting: Any = reflection_pb2_grpc.ServerReflectionStub(untyped)
    found = reflecting.ServerReflectionInfo(iter([request]))

    assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
    assert (await health.Watch(health_pb2.HealthCheckRequest()).read()).status == 1
    names = {it.name for it in (await found.read()).list_services_response.service}
    assert names == {HEALTH_NAME, reflection.SERVICE_NAME}
