"""Sessions over real sockets: by the generated stubs alone, and by our client on whole engines."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2

from progressor import errors, job_errors
from progressor.api.calls.status import CODES
from progressor.api.server.server import ApiServer, Listening
from progressor.sdk import EngineUnavailableError
from progressor.sdk.transport import session as sessions
from progressor.v1 import process_service_pb2 as pb
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.api import sent_errors
from tests.support.api.memory import Memory, MemoryRequests
from tests.support.api.server import build
from tests.support.engine.process import running_process
from tests.support.engine.replica import Env, Replica, open_env, running_replica
from tests.support.engine.sessions import RawSession, call_of, error_of
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

FEW = 50
MANY = 10_000
SOON = dt.timedelta(milliseconds=200)
FIELD = errors.FieldViolation("process_id", "is empty")

ELSEWHERE = {
    *(kind for kind in CODES if kind.__module__ == job_errors.__name__),
    errors.GateInUseError,
    errors.GateChangedError,
    errors.ProcessTerminatedError,
    errors.TaskHasEndedError,
    errors.NamespaceAlreadyExistsError,
    errors.NamespaceNotEmptyError,
    errors.NamespaceChangedError,
}
"""Of namespaces, gates, jobs, schedules, Cancel and AwaitProcess: no session has them."""

SENT_ERRORS: list[errors.ProgressorError] = [
    errors.InvalidRequestError(FIELD),
    errors.RejectedError("no", code=3, processor_reason="NO_MONEY", metadata={"left": "3"}),
    *(error for error, _, _ in sent_errors.SENT_ERRORS if type(error) not in ELSEWHERE),
]


class Api:
    """The server of the API with collaborators in memory, and channels to it."""

    def __init__(self, server: ApiServer, requests: MemoryRequests, address: str) -> None:
        self.server, self.requests, self.address = server, requests, address
        self.channel = grpc.aio.insecure_channel(address)
        self.stub: Any = ProcessServiceStub(self.channel)

    def session(self) -> RawSession:
        """Open a session over a connection of its own."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        return RawSession(grpc.aio.insecure_channel(self.address, options=options))


@contextlib.asynccontextmanager
async def serving(**listening: Any) -> AsyncIterator[Api]:
    """Serve the API on a free port, and drain it at once in the end."""
    requests = MemoryRequests()
    server = build(Listening(bind=("127.0.0.1:0",), **listening), Memory(requests=requests))
    (address,) = await server.start()
    api = Api(server, requests, address)
    yield api
    await api.channel.close()
    await server.drain(dt.timedelta(0))


@pytest_asyncio.fixture(loop_scope="module")
async def api() -> AsyncIterator[Api]:
    async with serving() as api:
        yield api


def request(args: bytes = b"", process_id: str = "1") -> pb.CallRequest:
    return pb.CallRequest(namespace="orders", process_id=process_id, args=args)


def info_of(error: pb.SessionError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert error.details[0].Unpack(info)
    return info


@pytest.mark.parametrize("error", SENT_ERRORS, ids=lambda it: type(it).__name__)
async def test_an_error_in_a_session_is_the_error_of_a_unary_call(
    api: Api, error: errors.ProgressorError
) -> None:
    api.requests.raises = error
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await api.stub.Call(request())
    async with api.session() as session:
        await session.send(call_of(1, request()))
        answer = (await session.answered())[1]

    told = error_of(answer)
    assert (told.code(), told.details()) == (unary.value.code(), unary.value.details())
    trailers = dict(unary.value.trailing_metadata() or ())
    assert pb.SessionError.FromString(trailers["grpc-status-details-bin"]) == answer.error


async def test_every_error_that_a_session_can_tell_was_told() -> None:
    internal = {kind for kind, code in CODES.items() if code is grpc.StatusCode.INTERNAL}
    abstract = {
        errors.RequestError, errors.NotFoundError, errors.StateError, errors.StepFailedError,
    }  # fmt: skip
    assert set(CODES) - internal - abstract - ELSEWHERE == {type(error) for error in SENT_ERRORS}


async def test_ten_thousand_calls_are_in_flight_on_one_session_and_not_one_more(api: Api) -> None:
    async with api.session() as session:
        for first in range(0, MANY, 500):
            numbers = range(first, first + 500)
            await session.send(*(call_of(n, request(b"hang")) for n in numbers))
        await session.send(call_of(MANY, request(b"hang")))
        overloaded = await session.answered()
        waiting = len(api.requests.requests)
        api.requests.release.set()
        answers = await session.answered(MANY + 1)

    assert waiting == MANY
    assert info_of(overloaded[MANY].error).reason == "OVERLOADED"
    assert all(answers[n].call.response == b"hang" for n in range(MANY))


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    sent = asyncio.Event()

    async def send_all(session: RawSession) -> None:
        for number in range(8 * FEW):
            await session.send(call_of(number, request(bytes(200_000))))
        sent.set()

    async with (
        serving(session_calls_max=FEW) as api,
        api.session() as deaf,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(send_all(deaf))
        async with api.session() as neighbour:
            for number in range(300):
                await neighbour.send(call_of(number, request(b"n")))
                await neighbour.answered(number + 1)
        begun = sum(1 for it in api.requests.requests if getattr(it, "args", b"") != b"n")
        answers = await deaf.answered(8 * FEW)

    # What is refused never begins; what began is bounded by calls in flight and unread answers.
    assert begun < 4 * FEW
    assert sent.is_set()
    assert all(it.call.response or it.error.code == 8 for it in answers.values())


async def test_a_session_that_is_held_open_does_not_hold_up_the_drain(api: Api) -> None:
    async with api.session() as session:
        await session.send(call_of(1, request(b"hang")))
        await api.requests.asked.wait()
        draining = asyncio.ensure_future(api.server.drain(dt.timedelta(seconds=30)))
        await session.until_draining()
        await session.send(
            call_of(2, request()),
            call_of(3, pb.GetRequest(namespace="orders", process_id="1")),
        )
        during = await session.answered(2)
        api.requests.release.set()
        end = await session.read()
        while end is not None:
            end = await session.read()
        async with asyncio.timeout(10):
            await draining

    assert info_of(during[2].error).reason == "SHUTTING_DOWN"
    assert during[3].HasField("get")
    assert session.answers[-1].call.response == b"hang"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, one_at_a_time=False) as env:
        yield env


async def test_a_session_of_stubs_does_what_single_calls_do(env: Env) -> None:
    key: dict[str, Any] = {"namespace": env.namespace, "process_id": "p"}
    async with (
        grpc.aio.insecure_channel(env.replica.address) as channel,
        RawSession(channel) as session,
    ):
        await session.send(call_of(1, pb.StartRequest(**key, args=b"1")))
        started = (await session.answered())[1].start
        await session.send(
            call_of(2, pb.CallRequest(**key, args=b"2")),
            call_of(3, pb.NotifyRequest(**key, args=b"3")),
            call_of(4, pb.CallRequest(**key, args=b"4", accept_only=True)),
            call_of(5, pb.StartRequest(**key)),
            call_of(6, pb.RepairRequest(**key)),
            call_of(7, pb.GetRequest(namespace=env.namespace, process_id="none")),
        )
        answers = await session.answered(7)
        await session.send(call_of(8, pb.GetRequest(**key)))
        got = (await session.answered(8))[8].get
        await session.ended()

    assert started.response == b"1"
    assert answers[2].call.response == b"2"
    assert answers[3].notify.task_id > started.task_id
    assert answers[4].call.task_id > started.task_id
    reasons = [info_of(answers[n].error).reason for n in (5, 6, 7)]
    assert reasons == ["PROCESS_ALREADY_EXISTS", "PROCESS_IS_RUNNING", "PROCESS_NOT_FOUND"]
    assert got.process.process_id == "p"


async def test_an_engine_killed_amid_a_session_and_started_again_serves_what_is_safe(
    env: Env, database: str, tmp_path: Path
) -> None:
    await env.running("safe", Hang(), Answer())
    await env.running("unsafe", Hang(), Answer())
    async with asyncio.TaskGroup() as group:
        async with running_process(database, tmp_path) as victim:
            there = env.client_at(victim.address)
            safe = group.create_task(there.call("safe", b"1", idempotency_key="k", timeout=60))
            unsafe = group.create_task(unavailable(there.call("unsafe", b"2")))
            await env.asked("safe", 2)
            await env.asked("unsafe", 2)
            victim.kill()
            await victim.left()
        was_told = await unsafe
        async with running_process(database, tmp_path):
            answered = await safe
            again = await there.call("unsafe", b"3", timeout=60)
            await there.close()

    assert was_told
    assert answered.response == b"1"
    assert again.response == b"3"


async def unavailable(call: Any) -> bool:
    with pytest.raises(EngineUnavailableError):
        await call
    return True


async def test_a_client_moves_to_another_replica_behind_the_name_and_loses_nothing(
    env: Env, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CHANNEL_SECONDS_MIN", 0.0)
    name, first, second = tmp_path / "name.sock", tmp_path / "1.sock", tmp_path / "2.sock"
    name.symlink_to(first)
    await env.running("p", hang := Hang())
    await env.running("q")
    async with (
        running_replica(database, {"server.bind": f"unix:{second}"}),
        env.client_at(f"unix:{name}") as client,
        asyncio.TaskGroup() as group,
        running_replica(database, {"server.bind": f"unix:{first}"}) as leaving,
    ):
        waiting = group.create_task(client.call("p", b"1"))
        await env.asked("p", 2)
        name.unlink()
        name.symlink_to(second)
        leaving.engine.stop()
        # Those that reach the old one before its word has reached us are repeated.
        answers = [
            (await client.call("q", b"%d" % n, idempotency_key=f"k{n}")).response for n in range(20)
        ]
        was_done = waiting.done()
        hang.released.set()
        answered = await waiting

    assert answers == [b"%d" % n for n in range(20)]
    assert not was_done
    assert answered.response == b"1"
