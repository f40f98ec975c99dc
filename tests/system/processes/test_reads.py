"""What can be read: a process, its history in pages, and the trace of its tasks; what was put."""

import datetime as dt
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from progressor.sdk import (
    NO_HISTORY,
    Direction,
    HistoryRange,
    NewEvent,
    ProcessStatus,
)
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.replica import (
    Env,
    answering,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

if TYPE_CHECKING:
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub


BACKWARD = Direction.BACKWARD
MIB = 1024 * 1024


RANGES = {
    "all": (HistoryRange(), [1, 2, 3, 4, 5]),
    "after 2": (HistoryRange(after=2), [3, 4, 5]),
    "after the last": (HistoryRange(after=5), []),
    "the first two": (HistoryRange(limit=2), [1, 2]),
    "two after 1": (HistoryRange(after=1, limit=2), [2, 3]),
    "none": (NO_HISTORY, []),
    "all backward": (HistoryRange(direction=BACKWARD), [5, 4, 3, 2, 1]),
    "the last two": (HistoryRange.last(2), [5, 4]),
    "backward from 3": (HistoryRange(after=3, direction=BACKWARD), [2, 1]),
    "backward from the first": (HistoryRange(after=1, direction=BACKWARD), []),
}


@pytest.mark.parametrize("name", RANGES)
class TestHistoryRange:
    async def test_of_a_get(self, env: Env, name: str) -> None:
        wanted, expected = RANGES[name]
        await env.client.put("p", history=[NewEvent(payload=b"e")] * 5)

        snapshot = await env.client.get("p", history=wanted)

        assert [event.event_id for event in snapshot.history] == expected
        assert snapshot.process.last_event_id == 5

    async def test_of_a_call_is_the_same_from_memory(self, env: Env, name: str) -> None:
        wanted, expected = RANGES[name]
        await env.running("p", answering(*[b"e"] * 5), answering())
        await env.client.call("p")

        await env.client.call("p", history=wanted)

        assert [event.event_id for event in env.asked_for("p")[2].history] == expected


async def read_by_pages(
    stub: "ProcessServiceAsyncStub", env: Env, **fields: Any
) -> tuple[list[int], list[int]]:
    """Return the ids of the events that a client gets, and the sizes of the answers."""
    seen: list[int] = []
    sizes: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await stub.Get(
            pb.GetRequest(
                namespace=env.namespace,
                process_id="p",
                history_range=types_pb2.HistoryRange(after=after),
                **fields,
            )
        )
        seen.extend(event.event_id for event in page.history)
        sizes.append(page.ByteSize())
        after = page.next_after if page.HasField("next_after") else None
    return seen, sizes


@pytest.mark.parametrize("event_bytes", [2 * MIB, 300_000, 1_000])
async def test_a_client_with_grpcs_default_limit_reads_every_process(
    env: Env, event_bytes: int
) -> None:
    count = 7 * MIB // event_bytes
    large = [NewEvent(payload=b"x" * event_bytes)] * count
    await env.client.put("p", state=b"s" * 1_900_000, history=large, metadata={"m": "x" * 60_000})
    async with grpc.aio.insecure_channel(env.replica.address) as channel:
        seen, sizes = await read_by_pages(ProcessServiceStub(channel), env)

    assert seen == list(range(1, count + 1))
    assert max(sizes) <= 4 * MIB


async def test_a_page_without_the_state_holds_an_event_of_any_size_beside_it(env: Env) -> None:
    payload = b"x" * 2 * MIB
    await env.client.put("p", state=payload, history=[NewEvent(payload=payload)] * 3)
    async with grpc.aio.insecure_channel(env.replica.address) as channel:
        seen, sizes = await read_by_pages(ProcessServiceStub(channel), env, without_state=True)

    assert (seen, max(sizes) <= 4 * MIB) == ([1, 2, 3], True)
    with_state = await env.client.get("p", history=NO_HISTORY)
    without = await env.client.get("p", history=NO_HISTORY, without_state=True)
    assert (with_state.process.state, without.process.state) == (payload, None)


async def test_a_trace_has_every_task_with_its_times_and_events(env: Env) -> None:
    await env.running("p", answering(b"e1", b"e2", response=b"r"))
    await env.client.call("p", b"a", idempotency_key="k", context={"c": "1"})

    init, call = (await env.client.trace("p")).tasks

    assert (init.type, call.type) == ("init", "call")
    assert (call.args, call.response, call.idempotency_key) == (b"a", b"r", "k")
    assert (call.context, call.attempt_count) == ({"c": "1"}, 1)
    assert [event.event_id for event in call.events] == [1, 2]
    assert call.scheduled_at is not None
    assert call.started_at is not None
    assert call.finished_at is not None
    assert call.created_at <= call.scheduled_at <= call.started_at <= call.finished_at
    assert call.finished_at == call.events[0].occurred_at


THEN = dt.datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=dt.UTC)
LATER = THEN + dt.timedelta(hours=1)
HISTORY = [
    NewEvent(payload=b"e1", format_version=1, metadata={"a": 1}, occurred_at=THEN),
    NewEvent(payload=b"e2", format_version=2),
]


async def test_put_keeps_all_that_it_is_given(env: Env) -> None:
    put = await env.client.put(
        "p",
        state=b"s",
        metadata={"customer": "c1", "n": 3},
        history=HISTORY,
        previous_status=ProcessStatus.INIT,
        created_at=THEN,
        status_changed_at=LATER,
    )

    snapshot = await env.client.get("p")
    process = snapshot.process
    assert (process.status, process.previous_status) == (ProcessStatus.RUNNING, ProcessStatus.INIT)
    assert (process.state, process.metadata) == (b"s", {"customer": "c1", "n": 3})
    assert (process.created_at, process.status_changed_at) == (THEN, LATER)
    first, second = snapshot.history
    assert (first.event_id, first.payload, first.format_version) == (1, b"e1", 1)
    assert (first.metadata, first.occurred_at, first.task_id) == ({"a": 1}, THEN, put.task_id)
    assert (second.event_id, second.payload, second.format_version) == (2, b"e2", 2)
    assert env.processor.requests == []
