"""The gRPC server: health, reflection, drain, and the addresses that it can be bound to."""

import asyncio
import contextlib
import datetime as dt
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from progressor import errors
from progressor.api.server.server import Listening
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.api.memory import SECOND
from tests.support.api.server import Engine, build, end_of, failure
from tests.support.engine.sessions import SessionStub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ["", *(
    f"progressor.v1.{name}Service"
    for name in (
        "Process", "Namespace", "Gate", "Job", "Schedule", "Step", "Replica", "Bulk", "Access",
    )
)]  # fmt: skip


def health_stub(api: Engine) -> Any:
    return health_pb2_grpc.HealthStub(api.channel)


async def test_health_tells_of_each_service(api: Engine) -> None:
    assert [await api.health(name) for name in SERVICES] == [SERVING] * len(SERVICES)
    api.server.set_serving(serving=False)
    assert [await api.health(name) for name in SERVICES] == [NOT_SERVING] * len(SERVICES)
    stub: Any = health_pb2_grpc.HealthStub(api.channel)
    unknown = await failure(stub.Check(health_pb2.HealthCheckRequest(service="other")))
    assert unknown.code() is grpc.StatusCode.NOT_FOUND


@contextlib.asynccontextmanager
async def cut_after(address: str, size: int) -> AsyncIterator[str]:
    """Yield where connections to an address break after so many bytes of answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*address.rsplit(":", 1))
        asking = asyncio.ensure_future(pass_on(reader, requests, None))
        await pass_on(answers, writer, size)
        requests.transport.abort()
        await asking

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: int | None
    ) -> None:
        with contextlib.suppress(OSError):
            while (room is None or room > 0) and (chunk := await reader.read(16_384)):
                writer.write(chunk)
                await writer.drain()
                room = None if room is None else room - len(chunk)
        writer.transport.abort()

    relay = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with relay:
        yield f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"


async def test_a_client_that_leaves_during_an_answer_logs_no_error(
    api: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    # How far gRPC has got with an answer when the connection breaks is up to its threads: before
    # the log was told, two of three rounds left an error in it.
    for _ in range(30):
        async with cut_after(api.address, 2_000_000) as address:
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                kind = SessionStub if api.in_sessions else ProcessServiceStub
                get, request = kind(channel).Get, pb.GetRequest(namespace="orders", process_id="1")
                calls = [get(request) for _ in range(4)]
                ends = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(it) for it in ends} == {grpc.aio.AioRpcError}

    assert [it.getMessage() for it in caplog.records if it.levelname == "ERROR"] == []


async def test_a_watcher_of_health_hears_on_when_another_one_has_left(api: Engine) -> None:
    watches = [health_stub(api).Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
    begun = [(await watch.read()).status for watch in watches]
    watches[1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watches[1].read()
    # The server has heard of it by the time that it answers a later request on the connection.
    await api.health()
    api.server.set_serving(serving=False)
    async with asyncio.timeout(5):
        told = (await watches[0].read()).status

    assert begun == [SERVING, SERVING]
    assert told == NOT_SERVING


async def test_reflection_lists_and_describes_every_service(api: Engine) -> None:
    def ask() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(api.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol("progressor.v1.ProcessService")
            return list(database.get_services()), [m.name for m in file.service[0].method]

    services, methods = await asyncio.to_thread(ask)

    more = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert set(services) == {*SERVICES[1:], *more}
    assert "AwaitTask" in methods


async def test_a_drain_turns_work_away_and_waits_for_what_is_in_flight(api: Engine) -> None:
    stub = api.process_service
    hanging = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    watch = health_stub(api).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == SERVING
    waiting = asyncio.ensure_future(as_coroutine(stub.Call(hanging)))
    await api.requests.asked.wait()
    draining = asyncio.create_task(api.server.drain(30 * SECOND))
    assert (await watch.read()).status == NOT_SERVING

    code, info = await end_of(stub.Notify(pb.NotifyRequest(namespace="orders", process_id="1")))
    read = await stub.Get(pb.GetRequest(namespace="orders", process_id="1"))
    api.requests.release.set()
    answer = await waiting
    async with asyncio.timeout(5):
        await draining

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
    assert read.process.process_id == "1"
    assert answer.response == b"hang"


async def as_coroutine(call: Any) -> pb.CallResponse:
    return await call  # type: ignore[no-any-return]  # untyped by grpc


async def test_a_drain_that_runs_out_of_grace_tells_those_who_wait(api: Engine) -> None:
    hanging = pb.CallRequest(namespace="orders", process_id="1", args=b"hang")
    waiting = asyncio.ensure_future(end_of(api.process_service.Call(hanging)))
    await api.requests.asked.wait()
    async with asyncio.timeout(5):
        await api.server.drain(SECOND / 20)
    code, info = await waiting

    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "REPLICA_STOPPED")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_port_taken_at_any_address_of_a_host_is_refused(api: Engine, host: str) -> None:
    address = f"{host}:{api.address.rpartition(':')[2]}"

    with pytest.raises(errors.ConfigError, match=rf"server\.bind.*already.*{address}"):
        await build(Listening(bind=(address,))).start()


async def test_a_unix_socket_is_not_taken_from_who_listens_there(tmp_path: Path) -> None:
    bind = (f"unix:{tmp_path}/api.sock",)
    first = build(Listening(bind=bind))
    second = build(Listening(bind=bind))
    await first.start()
    with pytest.raises(errors.ConfigError, match=r"server\.bind.*already"):
        await second.start()
    await first.drain(dt.timedelta(0))

    assert await second.start() == list(bind)
    await second.drain(dt.timedelta(0))


async def test_ports_can_be_shared_on_request() -> None:
    first = build(Listening(bind=("127.0.0.1:0",), port_shared=True))
    (address,) = await first.start()
    second = build(Listening(bind=(address,), port_shared=True))

    assert await second.start() == [address]
    await first.drain(dt.timedelta(0))
    await second.drain(dt.timedelta(0))


async def test_several_addresses_are_served_at_once(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/api.sock"
    server = build(Listening(bind=("127.0.0.1:0", path, "[::1]:0")[: 3 if has_ipv6() else 2]))
    addresses = await server.start()
    for address in addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            status = (await stub.Check(health_pb2.HealthCheckRequest())).status
            assert status == NOT_SERVING
    await server.drain(dt.timedelta(0))

    assert addresses[1] == path


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "127.0.0.1:99999",
        ":7420",
        "no.such.host.invalid:1",
        "unix:/no/such/place/a.sock",
    ],
)
async def test_an_address_that_cannot_be_bound_is_refused(address: str) -> None:
    with pytest.raises(errors.ConfigError, match=r"server\.bind"):
        await build(Listening(bind=(address,))).start()


def test_a_server_without_address_or_room_for_a_payload_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match=r"server\.bind"):
        Listening(bind=())
    with pytest.raises(errors.ConfigError, match=r"server\.message_bytes_max"):
        Listening(bind=("127.0.0.1:0",), message_bytes_max=16 * 1024**2)
