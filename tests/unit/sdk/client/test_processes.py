"""The asynchronous client: what it sends, what it brings back, what it sends again."""

import datetime as dt
from typing import Any

import grpc
import pytest
from opentelemetry import trace

from progressor import errors
from progressor.sdk import (
    BYTES,
    Client,
    Direction,
    EngineUnavailableError,
    HistoryRange,
)
from progressor.v1 import process_service_pb2 as pb
from tests.unit.sdk.scripted_engine import ScriptedEngine, refusal, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
CUT_OFF = refusal(grpc.StatusCode.CANCELLED, "", domain="", message="CANCELLED")
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE", retry_after=dt.timedelta(0))


@pytest.fixture(autouse=True, params=["session", "unary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how requests reach the engine: each test runs both ways."""
    monkeypatch.setattr(ScriptedEngine, "has_sessions", request.param == "session")
    return str(request.param)


@pytest.mark.parametrize("method", ["await_task", "cancel"])
@pytest.mark.parametrize("task", [{}, {"task_id": 1, "idempotency_key": "k"}])
async def test_a_task_is_named_in_exactly_one_way(method: str, task: dict[str, Any]) -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="exactly one"):
            await getattr(client, method)("p", **task)


async def test_a_naive_instant_is_refused_before_anything_is_sent() -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="must have a time zone"):
            await client.put("p", created_at=NOON.replace(tzinfo=None))


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
