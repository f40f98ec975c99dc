"""The client's sessions: opened by itself, fallen back from, cut, replaced; against any engine."""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from progressor.internal.v1 import frames_pb2
from progressor.sdk import BYTES, Client, EngineUnavailableError, UnexpectedStatusError
from progressor.sdk.transport import session as sessions
from progressor.sdk.transport.session import Session
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import process_service_pb2_grpc
from tests.unit.sdk.scripted_engine import HANG, ScriptedEngine, scripted_engine

PATIENCE_SECONDS = 10
OK = pb.CallResponse(response=b"ok")

Serve = Callable[["BareEngine", Any, Any], Awaitable[None]]


class BareEngine:
    """An engine whose sessions are served as a test says, one after the other; calls answer OK."""

    def __init__(self, *serves: Serve) -> None:
        self.serves = list(serves)
        self.calls: list[pb.SessionCall] = []
        self.unary: list[Any] = []
        self.peers: list[str] = []
        self.address = ""
        self.reached = asyncio.Event()
        self.released = asyncio.Event()

    async def Session(self, requests: Any, context: Any) -> None:  # noqa: N802 - as in the contract
        self.peers.append(context.peer())
        await self.serves.pop(0)(self, requests, context)

    async def Call(self, request: Any, _context: Any) -> pb.CallResponse:  # noqa: N802 - as in the contract
        self.unary.append(request)
        return OK

    Start = Notify = Repair = Retry = SimpleRepair = Get = Put = Remove = Call
    Trace = List = Count = ListFailures = AwaitTask = Cancel = Terminate = AwaitProcess = Call

    async def first(self, requests: Any) -> pb.SessionCall:
        """Return the first call of a session."""
        async for frame in requests:
            self.calls.extend(frame.calls)
            if frame.calls:
                return frame.calls[0]  # type: ignore[no-any-return]  # untyped by grpc
        raise AssertionError


@contextlib.asynccontextmanager
async def bare_engine(*serves: Serve) -> AsyncIterator[BareEngine]:
    engine = BareEngine(*serves)
    server = grpc.aio.server()
    process_service_pb2_grpc.add_ProcessServiceServicer_to_server(engine, server)  # type: ignore[arg-type]  # by name
    engine.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield engine
    finally:
        await server.stop(None)


def answer(call: pb.SessionCall, /, **result: Any) -> pb.SessionResponse:
    return pb.SessionResponse(answers=[pb.SessionAnswer(call_id=call.call_id, **result)])


async def answering(engine: BareEngine, requests: Any, context: Any) -> None:
    """Serve every call with OK."""
    async for frame in requests:
        engine.calls.extend(frame.calls)
        for call in frame.calls:
            await context.write(answer(call, call=OK))


async def unavailable(engine: BareEngine, requests: Any, context: Any) -> None:
    """Take one call and break."""
    await engine.first(requests)
    await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")


async def ending(engine: BareEngine, requests: Any, _context: Any) -> None:
    """Take one call and end the session as if all were well."""
    await engine.first(requests)


async def draining(engine: BareEngine, requests: Any, context: Any) -> None:
    """Say draining with the first call in hand; answer it once the client has closed its side."""
    call = await engine.first(requests)
    await context.write(pb.SessionResponse(draining=True))
    engine.reached.set()
    async for frame in requests:
        for late in frame.calls:
            await context.write(answer(late, call=pb.CallResponse(response=b"late")))
    await engine.released.wait()
    await context.write(answer(call, call=OK))


def client(engine: BareEngine | ScriptedEngine, **options: Any) -> Client:
    return Client(engine.address, codec=BYTES, jitter=lambda: 1.0, **options)


async def test_a_session_is_not_run_in_the_context_of_who_happened_to_be_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    seen: list[str] = []
    run = Session.run

    async def noted(session: Session) -> None:
        seen.append(span.get())
        await run(session)

    monkeypatch.setattr(Session, "run", noted)
    async with bare_engine(answering) as engine, client(engine) as it:
        token = span.set("of the first")
        await it.call("p")
        span.reset(token)

    assert seen == ["none"]


async def test_an_engine_without_sessions_is_asked_by_calls_and_not_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ScriptedEngine, "has_sessions", False)
    async with scripted_engine(*[OK] * 12) as engine, client(engine) as it:
        await asyncio.gather(*(it.call("p") for _ in range(10)))
        await it.call("p")
        monkeypatch.setattr(ScriptedEngine, "has_sessions", True)
        await it.call("p")

    assert (len(engine.requests), engine.sessions) == (12, 0)


@pytest.mark.parametrize("serve", [unavailable, ending])
async def test_a_session_that_breaks_has_what_is_safe_asked_again(serve: Serve) -> None:
    async with bare_engine(serve, answering) as engine, client(engine) as it:
        answered = await it.call("p", idempotency_key="k")

    assert answered.response == b"ok"
    assert [call.call.idempotency_key for call in engine.calls] == ["k", "k"]


@pytest.mark.parametrize("serve", [unavailable, ending])
async def test_a_session_that_breaks_ends_what_is_not_safe(serve: Serve) -> None:
    async with bare_engine(serve, answering) as engine, client(engine) as it:
        with pytest.raises(EngineUnavailableError):
            await it.call("p")
        again = await it.call("p")

    assert again.response == b"ok"


async def test_a_session_that_drains_is_read_to_its_end_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "CHANNEL_SECONDS_MIN", 0.0)
    async with bare_engine(draining, answering) as engine, client(engine) as it:
        first = asyncio.ensure_future(it.call("p", b"1"))
        await engine.reached.wait()
        while (await it.call("p", b"2")).response != b"ok":
            pass
        engine.released.set()
        answered = await first

    assert answered.response == b"ok"
    # Another connection, which a balancer could have led to another replica.
    assert len(set(engine.peers)) == 2


async def test_a_caller_that_is_cancelled_is_told_of() -> None:
    async with scripted_engine(HANG) as engine, client(engine) as it:
        waiting = asyncio.ensure_future(it.call("p"))
        await engine.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.told.wait()

    assert engine.cancelled == [1]


async def test_a_request_given_up_before_it_was_written_is_never_sent() -> None:
    async with bare_engine(answering) as engine, client(engine) as it:
        given_up = asyncio.ensure_future(it.call("p", b"1"))
        await asyncio.sleep(0)
        given_up.cancel()
        await it.call("p", b"2")

    assert [call.call.args for call in engine.calls] == [b"2"]
    assert given_up.cancelled()


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"start": pb.StartResponse()}, grpc.StatusCode.INTERNAL),
        ({}, grpc.StatusCode.INTERNAL),
        ({"error": pb.SessionError(code=999, message="?")}, grpc.StatusCode.UNKNOWN),
        ({"error": pb.SessionError()}, grpc.StatusCode.UNKNOWN),
    ],
)
async def test_an_answer_that_is_none_ends_its_request(
    result: dict[str, Any], code: grpc.StatusCode
) -> None:
    async def wrong(engine: BareEngine, requests: Any, context: Any) -> None:
        await context.write(answer(await engine.first(requests), **result))
        await answering(engine, requests, context)

    async with bare_engine(wrong) as engine, client(engine) as it:
        with pytest.raises(UnexpectedStatusError) as raised:
            await it.call("p")
        answered = await it.call("p")

    assert raised.value.code is code
    assert answered.response == b"ok"


async def test_a_garbled_answer_ends_its_request_alone() -> None:
    async def garble(requests: Any, context: Any) -> None:
        async for data in requests:
            for call in frames_pb2.CallsFrame.FromString(data).calls:
                answers = frames_pb2.CallAnswersFrame()
                kind = pb.CallRequest.FromString(call.call).args.decode()
                garbled = OK.SerializeToString() if kind == "call" else b"\x0a\x7fshort"
                field = "call" if kind == "garbled" else kind
                answers.answers.add(call_id=call.call_id, **{field: garbled})
                await context.write(answers.SerializeToString())

    class Garbling(grpc.GenericRpcHandler):
        def service(self, _details: grpc.HandlerCallDetails) -> Any:
            return grpc.stream_stream_rpc_method_handler(garble)

    server = grpc.aio.server(handlers=[Garbling()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with Client(f"127.0.0.1:{port}", codec=BYTES) as it:
        ended = await asyncio.gather(
            *(it.call("p", kind) for kind in (b"garbled", b"error", b"call")),
            return_exceptions=True,
        )
    await server.stop(None)

    garbled, error, answered = ended
    assert isinstance(garbled, UnexpectedStatusError)
    assert isinstance(error, UnexpectedStatusError)
    assert (garbled.code, error.code) == (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    assert getattr(answered, "response", None) == b"ok"


async def test_closing_ends_what_waits_and_the_next_request_opens_again() -> None:
    async with scripted_engine(HANG, OK) as engine, client(engine) as it:
        waiting = asyncio.ensure_future(it.call("p", idempotency_key="k"))
        await engine.asked.wait()
        await it.close()
        with pytest.raises(EngineUnavailableError, match="closed"):
            await waiting
        answered = await it.call("p")

    assert answered.response == b"ok"
    assert engine.sessions == 2
