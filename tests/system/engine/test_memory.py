"""Memory: what a request takes is free when it has ended, however it ended."""

import asyncio
import collections
import contextlib
import datetime as dt
import gc
import itertools
import os
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

import progressor
from progressor.processor.stream import STEP_BYTES_MAX
from progressor.v1 import job_service_pb2
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.job_service_pb2_grpc import JobServiceStub
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    Replica,
    answering,
    broken,
    open_env,
    timer,
    unavailable,
)
from tests.support.engine.sessions import RawSession, call_of
from tests.support.processor.scripted import Answer, Drop, Hang, Step, fail, reject

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ENGINE = str(Path(progressor.__file__).parent)
_OF_CLIENTS = str(Path(_ENGINE, "sdk"))
OF_GRPC_SERVERS = frozenset({"RPCState", "_ServicerContext"})
"""What grpc.aio makes for each call that a server of this process serves."""

_TURNS = 20
_TURN_SECONDS = 0.01


async def left_by(ask: Callable[[], Awaitable[None]], *, rounds: int) -> Mapping[str, int]:
    """Return what the engine in this process leaves to the collector when it is asked so often.

    It is asked once before, for what is made once and kept.
    """
    await ask()
    await _come_to_rest()
    gc.collect()
    with _collecting_nothing():
        for _ in range(rounds):
            await ask()
        await _come_to_rest()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        names = collections.Counter(name for thing in gc.garbage if (name := _name_of(thing)))
        gc.garbage.clear()
    gc.collect()
    return names


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.enable()


async def _come_to_rest() -> None:
    """Let the server finish what its client has left: no client learns when that is."""
    for _ in range(_TURNS):
        await asyncio.sleep(_TURN_SECONDS)


def _name_of(thing: object) -> str:
    """Return what a thing of the engine, or of a request to it, is called; empty for others."""
    if isinstance(thing, types.FrameType):
        code = thing.f_code
        is_ours = code.co_filename.startswith(_ENGINE)
        return code.co_name if is_ours and not code.co_filename.startswith(_OF_CLIENTS) else ""
    kind = type(thing)
    if kind.__name__ in OF_GRPC_SERVERS:
        return kind.__name__
    is_ours = kind.__module__.startswith("progressor.")
    of_clients = ("progressor.sdk", "progressor.v1")
    return kind.__qualname__ if is_ours and not kind.__module__.startswith(of_clients) else ""


ROUNDS = 2
ARGS = b"x" * 1000
BY_CALL = b"x" * (STEP_BYTES_MAX + 1)
OVER_THE_LIMIT = b"x" * 5_000_000
INTERNAL = 13
MIB = 1024 * 1024
REFUSED = 24
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))

Ask = Callable[["Asking"], Awaitable[None]]


class Asking:
    """A client without a word of ours: the generated stubs on a connection of its own."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.channel = self.connect()
        self._numbers = itertools.count()
        self.stub: Any = ProcessServiceStub(self.channel)

    def new_id(self) -> str:
        return f"p{next(self._numbers)}"

    def connect(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.env.replica.address, options=OPTIONS)

    def call(self, process_id: str = "idle", args: bytes = ARGS, **fields: Any) -> pb.CallRequest:
        named = {"namespace": self.env.namespace, "process_id": process_id, **fields}
        return pb.CallRequest(args=args, **named)

    def get(self, process_id: str = "idle") -> pb.GetRequest:
        return pb.GetRequest(namespace=self.env.namespace, process_id=process_id)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[RawSession]:
        async with RawSession(self.channel) as session:
            yield session

    async def in_session(self, request: Message, *, timeout: float | None = None) -> None:
        async with self.session() as session:
            await session.send(call_of(1, request, timeout=timeout))
            await session.answered()
            await session.ended()


async def ended(call: Awaitable[object], code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is code


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(replica: Replica) -> AsyncIterator[Asking]:
    """Return a client of a namespace where ``idle`` waits for calls and ``busy`` is in a step."""
    async with open_env(
        replica,
        payload_bytes_max=4 * 1024 * 1024,
        step_timeout=dt.timedelta(minutes=10),
        retry_policy=NOW_AND_THEN,
    ) as env:
        hang, _ = await env.busy("busy")
        await env.running("idle")
        asking = Asking(env)
        yield asking
        hang.released.set()
        await asking.channel.close()


async def too_large(asking: Asking) -> None:
    call = asking.call(args=OVER_THE_LIMIT)
    await ended(asking.stub.Call(call), grpc.StatusCode.INVALID_ARGUMENT)


async def no_namespace(asking: Asking) -> None:
    await ended(asking.stub.Call(asking.call(namespace="none")), grpc.StatusCode.NOT_FOUND)


async def no_process(asking: Asking) -> None:
    await ended(asking.stub.Call(asking.call("none")), grpc.StatusCode.NOT_FOUND)


async def accept_only_no_process(asking: Asking) -> None:
    call = asking.call("none", accept_only=True)
    await ended(asking.stub.Call(call), grpc.StatusCode.NOT_FOUND)


async def nothing_to_get(asking: Asking) -> None:
    await ended(asking.stub.Get(asking.get("none")), grpc.StatusCode.NOT_FOUND)


async def no_answer_in_time(asking: Asking) -> None:
    call = asking.stub.Call(asking.call("busy"), timeout=0.2)
    await ended(call, grpc.StatusCode.DEADLINE_EXCEEDED)


async def unreadable(asking: Asking) -> None:
    method: Any = asking.channel.unary_unary("/progressor.v1.ProcessService/Call")
    await ended(method(b"\x0a\xff\xff"), grpc.StatusCode.INVALID_ARGUMENT)


async def cancelled(asking: Asking) -> None:
    admitted = asking.env.points.count("admitted")
    call = asking.stub.Call(asking.call("busy"))
    await asking.env.points.wait("admitted", admitted + 1)
    call.cancel()


async def answered(asking: Asking) -> None:
    await asking.stub.Call(asking.call())


async def no_job_to_watch(asking: Asking) -> None:
    stub: Any = JobServiceStub(asking.channel)
    watched = job_service_pb2.WatchJobRequest(namespace=asking.env.namespace, job_id="none")
    await ended(stub.WatchJob(watched).read(), grpc.StatusCode.NOT_FOUND)


async def abandoned_watch_of_health(asking: Asking) -> None:
    stub: Any = health_pb2_grpc.HealthStub(asking.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    watch.cancel()


async def session(asking: Asking) -> None:
    await asking.in_session(asking.call())


async def session_too_large(asking: Asking) -> None:
    await asking.in_session(asking.call(args=OVER_THE_LIMIT))


async def session_no_answer_in_time(asking: Asking) -> None:
    await asking.in_session(asking.call("busy"), timeout=0.1)


async def session_cancelled_call(asking: Asking) -> None:
    admitted = asking.env.points.count("admitted")
    async with asking.session() as session:
        await session.send(call_of(1, asking.call("busy")))
        await asking.env.points.wait("admitted", admitted + 1)
        await session.send(cancelled=[1])
        await session.ended()


async def session_call_cancelled_at_once(asking: Asking) -> None:
    async with asking.session() as session:
        await session.send(call_of(1, asking.call("busy"), timeout=3600), cancelled=[1])
        await session.ended()


async def abandoned_session(asking: Asking) -> None:
    admitted = asking.env.points.count("admitted")
    async with asking.session() as session:
        await session.send(call_of(1, asking.call("busy"), timeout=3600))
        await asking.env.points.wait("admitted", admitted + 1)


async def lost_connection(asking: Asking) -> None:
    channel = asking.connect()
    session = RawSession(channel)
    await session.send(*(call_of(number, asking.get()) for number in range(1, 200)))
    await session.read()
    await channel.close()


async def unreadable_session(asking: Asking) -> None:
    method: Any = asking.channel.stream_stream("/progressor.v1.ProcessService/Session")
    stream = method()
    await stream.write(b"\x0a\xff\xff")
    await ended(stream.read(), grpc.StatusCode.INVALID_ARGUMENT)


REQUESTS: list[Ask] = [
    answered,
    too_large,
    no_namespace,
    no_process,
    accept_only_no_process,
    nothing_to_get,
    no_answer_in_time,
    unreadable,
    cancelled,
    no_job_to_watch,
    abandoned_watch_of_health,
    session,
    session_too_large,
    session_no_answer_in_time,
    session_cancelled_call,
    session_call_cancelled_at_once,
    abandoned_session,
    lost_connection,
    unreadable_session,
]


@pytest.mark.matrix
@pytest.mark.parametrize("ask", REQUESTS, ids=lambda each: each.__name__)
async def test_what_a_request_takes_is_free_without_a_garbage_collection(
    asking: Asking, ask: Ask
) -> None:
    assert await left_by(lambda: ask(asking), rounds=ROUNDS) == {}


@pytest.mark.matrix
@pytest.mark.parametrize("args", [ARGS, BY_CALL], ids=["by_stream", "by_call"])
@pytest.mark.parametrize(
    "steps",
    [
        [answering(b"done")],
        [reject(3)],
        [broken()],
        [unavailable(), unavailable(), Answer()],
        [Drop(), Answer()],
        [answering(set_timer=timer(-1))],
    ],
    ids=["answer", "reject", "break", "retries", "lost", "invalid"],
)
async def test_what_a_step_takes_is_free_without_a_garbage_collection(
    asking: Asking, steps: list[Step], args: bytes
) -> None:
    env = asking.env

    async def ask() -> None:
        process_id = asking.new_id()
        await env.running(process_id, *steps)
        call = asking.stub.Call(asking.call(process_id, args))
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call

    # The processor is a server of this process too.
    assert (await left_by(ask, rounds=ROUNDS)).keys() <= OF_GRPC_SERVERS


async def test_what_a_step_takes_that_ran_out_is_free_without_a_garbage_collection(
    replica: Replica,
) -> None:
    async with open_env(
        replica, step_timeout=dt.timedelta(milliseconds=200), retry_policy=NOW_AND_THEN
    ) as env:
        asking = Asking(env)

        async def ask() -> None:
            process_id = asking.new_id()
            await env.running(process_id, Hang(), fail(INTERNAL))
            call = asking.stub.Call(asking.call(process_id))
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call

        left = await left_by(ask, rounds=ROUNDS)
        await asking.channel.close()
    assert left.keys() <= OF_GRPC_SERVERS


async def test_refused_requests_leave_no_memory_behind(database: str, tmp_path: Path) -> None:
    refused = pb.StartRequest(namespace="orders", process_id="p", args=b"x" * 20 * MIB)
    async with (
        running_process(database, tmp_path) as engine,
        grpc.aio.insecure_channel(engine.address, options=OPTIONS) as channel,
    ):
        stub: Any = ProcessServiceStub(channel)
        before = resident_mib(engine)
        for _ in range(REFUSED):
            await ended(stub.Start(refused), grpc.StatusCode.INVALID_ARGUMENT)
        after = resident_mib(engine)

    # gRPC's own buffers are worth about seven requests.
    assert after - before < 20 * REFUSED / 2, f"{before} MiB, then {after}"


def resident_mib(engine: ReplicaProcess) -> float:
    """Return the memory of an engine in a process of its own."""
    pages = int(Path(f"/proc/{engine.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB
