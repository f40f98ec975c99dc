"""What the clients repeat, and how every status of the engine becomes an error."""

import asyncio
import contextlib
import datetime as dt
import inspect
from typing import Any

import grpc
import pytest
from opentelemetry import trace

from progressor import errors
from progressor.api.calls.status import status_of
from progressor.sdk import (
    BYTES,
    Client,
    Direction,
    EngineUnavailableError,
    HistoryRange,
    NewTimer,
    SyncClient,
    UnexpectedStatusError,
)
from progressor.sdk.transport.failures import error_for, read_status
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.support.api.sent_errors import SENT_ERRORS
from tests.unit.sdk.scripted_engine import HANG, ScriptedEngine, refusal, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
CUT_OFF = refusal(grpc.StatusCode.CANCELLED, "", domain="", message="CANCELLED")
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE", retry_after=dt.timedelta(0))


@pytest.fixture(autouse=True, params=["session", "unary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how requests reach the engine: each test runs both ways."""
    monkeypatch.setattr(ScriptedEngine, "has_sessions", request.param == "session")
    return str(request.param)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("await_task", {}, "exactly one"),
        ("cancel", {"task_id": 1, "idempotency_key": "k"}, "exactly one"),
        ("put", {"timer": NewTimer(), "timers": {"": NewTimer()}}, "must be given once"),
        ("put", {"created_at": NOON.replace(tzinfo=None)}, "must have a time zone"),
    ],
)
async def test_what_cannot_be_sent_is_refused(
    method: str, options: dict[str, Any], words: str
) -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match=words):
            await getattr(client, method)("p", **options)


async def test_an_option_that_there_is_not_is_refused() -> None:
    client: Any = Client("unix:/nonexistent")
    for request in (client.call, client.get, client.gates.get, client.jobs.watch):
        with pytest.raises(TypeError, match="timout"):
            await request("p", timout=1)


@pytest.mark.parametrize("option", ["field", "kind", "repeatable"])
async def test_how_a_request_is_built_is_no_option(option: str) -> None:
    client, blocking = Client("unix:/nonexistent"), SyncClient("unix:/nonexistent")
    refused: Any = pytest.raises(TypeError, match=rf"^remove\(\) got an .* '{option}'")
    options: dict[str, Any] = {option: ""}
    with refused:
        await client.remove("p", **options)
    with refused:
        blocking.remove("p", **options)


@pytest.mark.parametrize("client", [Client, SyncClient])
def test_signatures_name_every_option(client: type[Client | SyncClient]) -> None:
    parameters = inspect.signature(client.call).parameters
    assert list(parameters)[-5:] == [
        "timeout",
        "namespace",
        "idempotency_key",
        "context",
        "history",
    ]
    assert all(it.kind is not it.VAR_KEYWORD for it in parameters.values())
    assert (parameters["timeout"].default, parameters["namespace"].default) == (None, "")


async def test_the_state_has_the_type_that_is_asked_for() -> None:
    answer = pb.GetResponse(process=types.Process(aux_state=b"[1]"))
    async with scripted_engine(answer, answer) as engine, Client(engine.address) as client:
        snapshot = await client.get("p", state_type=tuple[int])
        with pytest.raises(ValueError, match="Expected `int`"):
            await client.get("p", state_type=int)

    assert snapshot.process.state == (1,)


async def test_the_bytes_codec_passes_payloads_through() -> None:
    answer = pb.CallResponse(response=b"\x00\xff")
    async with scripted_engine(answer) as engine, Client(engine.address, codec=BYTES) as client:
        answered = await client.call("p", b"\x01")

    assert (engine.requests[0].args, answered.response) == (b"\x01", b"\x00\xff")


async def test_a_request_that_a_leaving_engine_cut_off_is_repeated_where_that_is_safe() -> None:
    async with (
        scripted_engine(CUT_OFF, pb.GetResponse(), CUT_OFF) as engine,
        Client(engine.address, jitter=lambda: 1.0) as client,
    ):
        await client.get("p")
        with pytest.raises(EngineUnavailableError, match="CANCELLED"):
            await client.call("p")

    assert len(engine.requests) == 3


async def test_a_processor_that_refuses_by_cancelled_is_not_a_lost_connection() -> None:
    rejected = refusal(grpc.StatusCode.CANCELLED, "NO", domain="processor")
    async with scripted_engine(rejected) as engine, Client(engine.address) as client:
        with pytest.raises(errors.RejectedError):
            await client.call("p", idempotency_key="k")

    assert len(engine.requests) == 1


async def test_a_pause_that_outlasts_the_timeout_is_not_begun() -> None:
    later = refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", retry_after=dt.timedelta(hours=1))
    async with scripted_engine(later) as engine, Client(engine.address) as client:
        with pytest.raises(errors.ShuttingDownError):
            await client.get("p", timeout=dt.timedelta(seconds=30))

    assert len(engine.requests) == 1


async def test_a_current_span_travels_along() -> None:
    span = trace.NonRecordingSpan(
        trace.SpanContext(0xA, 0xB, is_remote=False, trace_flags=trace.TraceFlags(1))
    )
    answers = (pb.GetResponse(), pb.GetResponse())
    async with scripted_engine(*answers) as engine, Client(engine.address) as client:
        with trace.use_span(span):
            await client.get("p")
        await client.get("p")

    assert engine.metadata[0]["traceparent"] == f"00-{0xA:032x}-{0xB:016x}-01"
    assert "traceparent" not in engine.metadata[1]


async def test_a_closed_client_opens_again_when_it_is_used() -> None:
    answers = (pb.GetResponse(), pb.GetResponse())
    async with scripted_engine(*answers) as engine:
        client = Client(engine.address)
        await client.get("p")
        await client.close()
        await client.close()
        await client.get("p")
        await client.close()

    assert len(engine.requests) == 2


def test_history_ranges_say_what_they_mean() -> None:
    assert HistoryRange().direction is Direction.FORWARD
    assert HistoryRange.last(3) == HistoryRange(limit=3, direction=Direction.BACKWARD)


Code = grpc.StatusCode


SENT: list[tuple[grpc.Status, errors.ProgressorError]] = [
    (
        refusal(Code.INVALID_ARGUMENT, "INVALID_REQUEST"),
        errors.InvalidRequestError(errors.FieldViolation("request", "as the engine says")),
    ),
    (
        refusal(Code.FAILED_PRECONDITION, "PROCESS_FAILED", process_id="p"),
        errors.ProcessFailedError("p", "as the engine says"),
    ),
    (
        refusal(Code.UNAVAILABLE, "STORAGE_UNAVAILABLE"),
        errors.StorageUnavailableError("as the engine says", dt.timedelta(seconds=1)),
    ),
    (
        refusal(Code.UNAUTHENTICATED, "NO_STOCK", domain="processor", item="tea"),
        errors.RejectedError(
            "as the engine says", code=16, processor_reason="NO_STOCK", metadata={"item": "tea"}
        ),
    ),
    (
        refusal(Code.INTERNAL, "INTERNAL"),
        UnexpectedStatusError(Code.INTERNAL, "as the engine says", "INTERNAL"),
    ),
    (
        refusal(Code.DATA_LOSS, "", domain="another.domain"),
        UnexpectedStatusError(Code.DATA_LOSS, "as the engine says", ""),
    ),
]


@pytest.mark.parametrize(("status", "error"), SENT)
async def test_a_status_becomes_its_class_with_its_fields(
    status: grpc.Status, error: errors.ProgressorError
) -> None:
    async with scripted_engine(status) as engine, Client(engine.address) as client:
        with pytest.raises(type(error)) as raised:
            await client.call("p")

    assert type(raised.value) is type(error)
    assert vars(raised.value) == vars(error)


OF_THE_ENGINE = [
    (error, code)
    for error, code, _ in SENT_ERRORS
    if not isinstance(error, errors.StorageUnavailableError)
]
"""What the driver said of storage stays with the engine."""


@pytest.mark.parametrize(("error", "code"), OF_THE_ENGINE)
def test_an_error_of_the_engine_is_the_same_error_in_the_client(
    error: errors.ProgressorError, code: str
) -> None:
    told = status_of(error, subject={})

    found = error_for(read_status(as_raised(told.code, told.trailing_metadata), "engine"))

    assert told.code is grpc.StatusCode[code]
    assert type(found) is type(error)
    assert vars(found) == vars(error)


def as_raised(code: grpc.StatusCode, trailers: Any, text: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text)


def test_a_garbled_detail_leaves_the_plain_status() -> None:
    garbled = as_raised(
        Code.INTERNAL, [("grpc-status-details-bin", b"\xff\xff\xff")], "broken pipe"
    )

    found = error_for(read_status(garbled, "engine"))

    assert isinstance(found, UnexpectedStatusError)
    assert (found.code, found.message) == (Code.INTERNAL, "broken pipe")


async def test_a_deadline_of_ones_own_passes_without_a_task_id() -> None:
    async with (
        scripted_engine(HANG, HANG, HANG, [HANG]) as engine,
        Client(engine.address) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        blocking = stack.enter_context(SyncClient(engine.address))
        messages = []
        for asked in (
            client.call("p", timeout=0.05),
            client.result("p", timeout=0.05),
            asyncio.to_thread(blocking.result, "p", timeout=0.05),
            client.jobs.wait("j", timeout=0.05),
        ):
            with pytest.raises(errors.DeadlineExceededError) as raised:
                await asked
            assert raised.value.task_id is None
            messages.append(str(raised.value))

    assert messages == [
        "the deadline passed; no task is known",
        *["process 'p' had not ended when the deadline passed"] * 2,
        "job 'j' had not ended when the deadline passed",
    ]


async def test_an_unknown_response_is_no_silent_success() -> None:
    answer = pb.CallResponse(task_id=1, response=b"{not json")
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        with pytest.raises(ValueError, match="malformed"):
            await client.call("p")
