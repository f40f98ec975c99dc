"""What can be read: a process and its history, the processes of a namespace, the trace of tasks."""

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from progressor.sdk import (
    NO_HISTORY,
    Direction,
    HistoryRange,
    NewEvent,
    TaskStatus,
)
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.v1.process_service_pb2_grpc import ProcessServiceStub
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
)
from tests.support.processor.scripted import Hang

if TYPE_CHECKING:
    from progressor.v1.process_service_pb2_grpc import ProcessServiceAsyncStub

pytestmark = pytest.mark.asyncio(loop_scope="module")

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

    async def test_of_a_call_is_what_the_processor_gets(self, env: Env, name: str) -> None:
        wanted, expected = RANGES[name]
        await env.client.put("p", history=[NewEvent(payload=b"e")] * 5)

        await env.client.call("p", history=wanted)

        assert [event.event_id for event in env.asked_for("p")[0].history] == expected

    async def test_of_a_call_is_the_same_from_memory(self, env: Env, name: str) -> None:
        wanted, expected = RANGES[name]
        await env.running("p", answering(*[b"e"] * 5), answering())
        await env.client.call("p")

        await env.client.call("p", history=wanted)

        assert [event.event_id for event in env.asked_for("p")[2].history] == expected


class TestTheNamespacesHistory:
    @pytest.mark.parametrize(("last", "expected"), [(None, [1, 2, 3]), (2, [2, 3]), (0, [])])
    async def test_is_what_the_processor_gets(
        self, replica: Replica, last: int | None, expected: list[int]
    ) -> None:
        async with open_env(replica, history_last=last) as env:
            await env.client.put("p", history=[NewEvent(payload=b"e")] * 3)

            await env.client.call("p")

            assert [event.event_id for event in env.asked_for("p")[0].history] == expected


async def test_a_history_larger_than_a_message_comes_in_pages(env: Env) -> None:
    big = [NewEvent(payload=b"%d" % n + b"x" * 1_000_000) for n in range(8)]
    await env.client.put("p", history=big)
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await env.client.get("p", history=HistoryRange(after=after))
        seen.extend(event.event_id for event in page.history)
        after = page.next_after

    assert seen == list(range(1, 9))


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


async def test_a_trace_of_one_large_task_is_cut_to_what_a_client_can_read(env: Env) -> None:
    await env.client.put("p", history=[NewEvent(payload=b"x" * MIB)] * 6)
    async with grpc.aio.insecure_channel(env.replica.address) as channel:
        request = pb.TraceRequest(namespace=env.namespace, process_id="p")
        trace = await ProcessServiceStub(channel).Trace(request)

    assert [event.event_id for event in trace.tasks[0].events] == [1, 2, 3]


class TestList:
    async def test_pages_lose_and_repeat_nothing(self, env: Env) -> None:
        names = {f"p{number}" for number in range(25)}
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(env.client.start(name))

        listed = [process.process_id async for process in env.client.list(page_size=4)]

        assert len(listed) == 25
        assert set(listed) == names

    async def test_by_metadata(self, env: Env) -> None:
        await env.client.put("p1", metadata={"customer": "c1", "n": 1})
        await env.client.put("p2", metadata={"customer": "c2", "n": 1})
        await env.client.put("p3")

        async def of(metadata: dict[str, object]) -> set[str]:
            return {each.process_id async for each in env.client.list(metadata=metadata)}

        assert await of({"customer": "c1"}) == {"p1"}
        assert await of({"n": 1}) == {"p1", "p2"}
        assert await of({"n": 2}) == set()


class TestTrace:
    async def test_has_every_task_with_its_times_and_events(self, env: Env) -> None:
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

    async def test_shows_unfinished_tasks_as_they_stand(self, env: Env) -> None:
        await env.timed("p", hang := Hang())
        await env.client.call("p", accept_only=True)
        await env.asked("p", 2)
        await env.client.call("p", accept_only=True)

        tasks = (await env.client.trace("p")).tasks

        hang.released.set()
        assert [task.status for task in tasks] == [
            TaskStatus.FINISHED,
            TaskStatus.BLOCKED,
            TaskStatus.RUNNING,
            TaskStatus.WAITING,
        ]
        assert tasks[3].scheduled_at is None


async def test_the_callers_context_reaches_the_processor(env: Env) -> None:
    await env.running("p")

    await env.client.call("p", context={"tenant": "t1", "ключ": "значение"})

    context = dict(env.asked_for("p")[1].task.caller_context)
    assert context == {"tenant": "t1", "ключ": "значение"}


async def test_a_trace_names_the_replica_that_ran_each_task(env: Env) -> None:
    await env.running("ran-here")
    await env.client.call("ran-here")

    trace = await env.client.trace("ran-here")

    assert {task.replica_id for task in trace.tasks} == {env.replica.engine.replica_id}
