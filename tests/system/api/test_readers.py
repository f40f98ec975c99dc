"""A client that reads a lot, or stops consuming, does not block other readers."""

import asyncio
import datetime as dt
from typing import Any

import grpc
import pytest

from progressor.api.calls.turns import UNSENT_BYTES_MAX
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.api.server import Engine, running_engine
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import QUIET, Replica, answering, open_env, running_replica
from tests.support.engine.sessions import RawSession, call_of

LARGE_COUNT = 200
PAGE_BYTES = 3 * 1000**2
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)

LARGE = pb.GetRequest(namespace="orders", process_id="1")
SMALL = pb.GetRequest(namespace="orders", process_id="1")
SMALL.history_range.limit = 0


def connect(api: Engine | Replica) -> grpc.aio.Channel:
    """Return a connection of its own."""
    return grpc.aio.insecure_channel(api.address, options=OPTIONS)


@pytest.mark.parametrize("in_session", [True, False], ids=["session", "unary"])
async def test_a_small_get_does_not_wait_behind_the_large_ones_of_another_client(
    database: str, *, in_session: bool
) -> None:
    async with running_replica(database, QUIET) as replica, open_env(replica) as env:
        await env.running("large", answering(*[b"x" * 100_000] * 12))
        await env.client.call("large")
        await env.running("small")
        large, small = (
            pb.GetRequest(namespace=env.namespace, process_id=name) for name in ("large", "small")
        )
        async with connect(replica) as one, connect(replica) as other:
            stub: Any = ProcessServiceStub(other)
            await stub.Get(small)
            first, counted = asyncio.Event(), [0]
            reading = asyncio.create_task(
                read_all(one, large, first, counted, in_session=in_session)
            )
            await first.wait()
            await stub.Get(small)
            done = counted[0]
            await reading

    assert done < LARGE_COUNT / 2


async def read_all(
    channel: grpc.aio.Channel,
    request: pb.GetRequest,
    first: asyncio.Event,
    counted: list[int],
    *,
    in_session: bool,
) -> None:
    """Ask for the same LARGE_COUNT times at once, and count the answers."""

    def count(_call: object) -> None:
        counted[0] += 1
        first.set()

    if not in_session:
        stub: Any = ProcessServiceStub(channel)
        calls = [stub.Get(request) for _ in range(LARGE_COUNT)]
        for call in calls:
            call.add_done_callback(count)
        await asyncio.wait([asyncio.ensure_future(answered(call)) for call in calls])
        return
    async with RawSession(channel) as session:
        await session.send(*(call_of(number, request) for number in range(LARGE_COUNT)))
        while counted[0] < LARGE_COUNT:
            frame = await session.read()
            assert frame is not None, "it ended too early"
            for answer in frame.answers:
                count(answer)


async def answered(call: Any) -> pb.GetResponse:
    return await call  # type: ignore[no-any-return]  # untyped by grpc


async def test_of_answers_that_are_not_taken_only_so_many_are_read() -> None:
    async with running_engine(in_sessions=True) as api, connect(api) as channel:
        session = RawSession(channel)
        await session.send(*(call_of(number, LARGE) for number in range(LARGE_COUNT)))
        async with connect(api) as second, RawSession(second) as other:
            for number in range(20):
                await other.send(call_of(number, SMALL))
                await other.answered(number + 1)
        read = len(api.processes.ranges)
        waiting = await session.answered(LARGE_COUNT)
        session.stream.cancel()

    assert read <= UNSENT_BYTES_MAX / PAGE_BYTES + 2
    assert len(waiting) == LARGE_COUNT
    assert all(answer.HasField("get") for answer in waiting.values())


async def test_a_drain_does_not_wait_for_a_client_that_reads_no_answers() -> None:
    async with running_engine(in_sessions=True) as api, connect(api) as channel:
        session = RawSession(channel)
        await session.send(*(call_of(number, LARGE) for number in range(LARGE_COUNT)))
        async with connect(api) as second, RawSession(second) as other:
            await other.send(call_of(1, SMALL))
            await other.answered()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await api.server.drain(dt.timedelta(hours=1))
        session.stream.cancel()
