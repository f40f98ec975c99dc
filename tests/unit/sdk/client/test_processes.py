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
    NewEvent,
    NewTimer,
    ProcessStatus,
    TaskStatus,
    TaskType,
    WaitCause,
)
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.scripted_engine import ScriptedEngine, refusal, scripted_engine

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
FIRST, SECOND, THIRD = "1", "2", "3"
CUT_OFF = refusal(grpc.StatusCode.CANCELLED, "", domain="", message="CANCELLED")
AWAY = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE", retry_after=dt.timedelta(0))


@pytest.fixture(autouse=True, params=["session", "unary"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return how requests reach the engine: each test runs both ways."""
    monkeypatch.setattr(ScriptedEngine, "has_sessions", request.param == "session")
    return str(request.param)


async def test_start_sends_every_option_and_decodes_the_answer() -> None:
    answer = pb.StartResponse(task_id=7, response=b'{"n":1}', deduplicated=True)
    async with (
        scripted_engine(answer) as engine,
        Client(engine.address, namespace="orders") as client,
    ):
        started = await client.start(
            "order-1",
            {"item": "tea"},
            idempotency_key="k",
            context={"user": "ann"},
            history=HistoryRange.last(10),
            metadata={"region": "eu", "size": 3},
            accept_only=True,
            timeout=5,
        )

    expected = pb.StartRequest(
        namespace="orders",
        process_id="order-1",
        args=b'{"item":"tea"}',
        caller_context={"user": "ann"},
        idempotency_key="k",
        history_range=types.HistoryRange(limit=10, direction=types.DIRECTION_BACKWARD),
        accept_only=True,
    )
    expected.metadata.update({"region": "eu", "size": 3})
    assert engine.requests == [expected]
    assert (started.task_id, started.response, started.deduplicated) == (7, {"n": 1}, True)


@pytest.mark.parametrize("rpc", ["call", "repair"])
async def test_call_and_repair_decode_to_the_type_that_is_asked_for(rpc: str) -> None:
    answer = pb.CallResponse(task_id=1, response=b'"2026-03-01T12:00:00.123456Z"')
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        answered = await getattr(client, rpc)("p", 1, response_type=dt.datetime)

    assert answered.response == NOON


@pytest.mark.parametrize("task_id", [None, 5])
async def test_simple_repair_tells_whether_a_timer_runs_again(task_id: int | None) -> None:
    answer = pb.SimpleRepairResponse(task_id=task_id)
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        repaired = await client.simple_repair("p", namespace="other")

    assert engine.requests == [pb.SimpleRepairRequest(namespace="other", process_id="p")]
    assert repaired.task_id == task_id


def broken_process() -> types.Process:
    process = types.Process(
        namespace="orders",
        process_id="p",
        status=types.PROCESS_STATUS_ERROR,
        detail="out of tea",
        aux_state=b"[1]",
        corrupted_by=4,
        previous_status=types.PROCESS_STATUS_RUNNING,
        last_event_id=2,
    )
    process.metadata.update({"n": 1, "deep": {"x": [1.5, None, True, "s"]}})
    process.created_at.FromDatetime(NOON)
    process.status_changed_at.FromDatetime(NOON)
    return process


async def test_get_returns_process_history_timer_and_waits() -> None:
    answer = pb.GetResponse(process=broken_process(), next_after=1)
    event = answer.history.add(event_id=1, payload=b'"made"', format_version=2, task_id=3)
    event.occurred_at.FromDatetime(NOON)
    answer.timer.MergeFrom(
        types.Timer(task_id=5, type=types.TASK_TYPE_TIMEOUT, status=types.TASK_STATUS_BLOCKED)
    )
    answer.timer.due_at.FromDatetime(NOON)
    wait = answer.waits.add(
        task_id=5,
        type=types.TASK_TYPE_TIMEOUT,
        status=types.TASK_STATUS_WAITING,
        cause=types.WAIT_CAUSE_RETRY,
        attempt=3,
        last_error=types.TaskError(code=14, reason="R", message="m"),
    )
    wait.until.FromDatetime(NOON)
    crowded = answer.waits.add(
        cause=types.WAIT_CAUSE_NO_FREE_WORKER, worker_count=2, explanation="It waits."
    )
    crowded.since.FromDatetime(NOON)
    behind = answer.waits.add(cause=types.WAIT_CAUSE_BEHIND_TASK, behind_task_id=5)
    behind.behind_since.FromDatetime(NOON)
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        got = await client.get("p", history=HistoryRange(after=0, limit=1), state_type=list[int])

    assert engine.requests[0].history_range == types.HistoryRange(
        limit=1, direction=types.DIRECTION_FORWARD
    )
    assert got.process.status is ProcessStatus.ERROR
    assert got.process.previous_status is ProcessStatus.RUNNING
    assert (got.process.state, got.process.result, got.process.corrupted_by) == ([1], None, 4)
    assert got.process.metadata == {"n": 1, "deep": {"x": [1.5, None, True, "s"]}}
    assert isinstance(got.process.metadata["n"], int)
    assert got.process.created_at == NOON
    assert (got.history[0].payload, got.history[0].occurred_at) == ("made", NOON)
    assert got.timer is not None
    assert (got.timer.status, got.timer.due_at) == (TaskStatus.BLOCKED, NOON)
    assert (got.waits[0].cause, got.waits[0].until) == (WaitCause.RETRY, NOON)
    assert got.waits[0].last_error is not None
    assert (got.waits[0].behind_task_id, got.waits[0].last_error.code) == (None, 14)
    assert got.next_after == 1
    retried, crowd, line = got.waits
    assert (crowd.since, crowd.busy_count, crowd.worker_count) == (NOON, 0, 2)
    assert (crowd.explanation, crowd.behind_runs) == ("It waits.", None)
    assert (line.behind_task_id, line.behind_runs, line.behind_since) == (5, False, NOON)
    assert (retried.busy_count, retried.behind_since, retried.collected_at) == (None, None, None)


async def test_put_sends_the_whole_state() -> None:
    async with scripted_engine(pb.PutResponse(task_id=1)) as engine, Client(engine.address) as it:
        accepted = await it.put(
            "p",
            status=ProcessStatus.RUNNING,
            state={"a": 1},
            metadata={"m": 1},
            history=[NewEvent(payload="x", format_version=2, metadata={"e": 1}, occurred_at=NOON)],
            timer=NewTimer(at=NOON, remove=True),
            previous_status=ProcessStatus.ERROR,
            corrupted_by_type=TaskType.TIMEOUT,
            created_at=NOON,
            idempotency_key="k",
        )

    (request,) = engine.requests
    assert accepted.task_id == 1
    assert (request.status, request.previous_status, request.corrupted_by_type) == (2, 3, 5)
    assert request.aux_state == b'{"a":1}'
    assert (request.history[0].payload, request.history[0].metadata["e"]) == (b'"x"', 1)
    assert request.timer.at.ToDatetime(tzinfo=dt.UTC) == NOON
    assert request.timer.remove
    assert request.created_at.ToDatetime(tzinfo=dt.UTC) == NOON
    assert not request.HasField("status_changed_at")


async def test_remove_returns_nothing() -> None:
    async with scripted_engine(pb.RemoveResponse()) as engine, Client(engine.address) as client:
        await client.remove("p")

    assert engine.requests == [pb.RemoveRequest(namespace="default", process_id="p")]


async def test_trace_returns_a_page_of_tasks_and_the_token_of_the_next() -> None:
    answer = pb.TraceResponse(tasks=[pb.TaskTrace(task_id=7)], next_page_token=SECOND)
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        page = await client.trace("p", page_size=1)

    assert ([it.task_id for it in page.tasks], page.next_page_token) == ([7], SECOND)


async def test_list_follows_the_pages() -> None:
    pages = [
        pb.ListResponse(processes=[types.Process(process_id="c")], next_page_token=SECOND),
        pb.ListResponse(next_page_token=THIRD),
        pb.ListResponse(processes=[types.Process(process_id="a")]),
    ]
    async with scripted_engine(*pages) as engine, Client(engine.address) as client:
        found = [
            process.process_id
            async for process in client.list(
                statuses=[ProcessStatus.ERROR], created_from=NOON, metadata={"a": 1}, page_size=2
            )
        ]

    assert found == ["c", "a"]
    assert [request.page_token for request in engine.requests] == ["", SECOND, THIRD]
    assert all(list(request.statuses) == [3] for request in engine.requests)
    assert engine.requests[2].metadata["a"] == 1


@pytest.mark.parametrize("task", [{"task_id": 0}, {"idempotency_key": "k"}])
async def test_await_task_names_the_task_one_way(task: dict[str, Any]) -> None:
    answer = pb.AwaitTaskResponse(task_id=9, type=types.TASK_TYPE_INIT, response=b"true")
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        ended = await client.await_task("p", **task)

    assert engine.requests[0].WhichOneof("task") == next(iter(task))
    assert (ended.task_id, ended.type, ended.response) == (9, TaskType.INIT, True)


@pytest.mark.parametrize("task", [{}, {"task_id": 1, "idempotency_key": "k"}])
async def test_await_task_refuses_none_or_both(task: dict[str, Any]) -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="exactly one"):
            await client.await_task("p", **task)


async def test_a_naive_instant_is_refused_before_anything_is_sent() -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="must have a time zone"):
            await client.put("p", created_at=NOON.replace(tzinfo=None))


async def test_the_bytes_codec_passes_payloads_through() -> None:
    answer = pb.CallResponse(response=b"\x00\xff")
    async with scripted_engine(answer) as engine, Client(engine.address, codec=BYTES) as client:
        answered = await client.call("p", b"\x01")

    assert (engine.requests[0].args, answered.response) == (b"\x01", b"\x00\xff")


REPEATED: list[tuple[str, dict[str, Any], Any]] = [
    ("get", {}, pb.GetResponse()),
    ("trace", {}, pb.TraceResponse()),
    ("await_task", {"task_id": 1}, pb.AwaitTaskResponse()),
    ("start", {"idempotency_key": "k"}, pb.StartResponse()),
    ("call", {"idempotency_key": "k"}, pb.CallResponse()),
    ("notify", {"idempotency_key": "k"}, pb.NotifyResponse()),
    ("repair", {"idempotency_key": "k"}, pb.RepairResponse()),
    ("put", {"idempotency_key": "k"}, pb.PutResponse()),
]


@pytest.mark.parametrize(("method", "options", "answer"), REPEATED)
async def test_what_is_safe_to_repeat_is_repeated(
    method: str, options: dict[str, Any], answer: Any
) -> None:
    async with (
        scripted_engine(AWAY, AWAY, answer) as engine,
        Client(engine.address, jitter=lambda: 1.0) as client,
    ):
        await getattr(client, method)("p", **options)

    assert len(engine.requests) == 3


@pytest.mark.parametrize(
    "method", ["start", "call", "notify", "repair", "put", "remove", "simple_repair"]
)
async def test_what_might_happen_twice_is_never_repeated(method: str) -> None:
    async with scripted_engine(AWAY, AWAY) as engine, Client(engine.address) as client:
        with pytest.raises(errors.StorageUnavailableError):
            await getattr(client, method)("p")

    assert len(engine.requests) == 1


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
