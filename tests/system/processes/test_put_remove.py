"""Put: a process imported as it is, in each state, with its history and timer; and its end."""

import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import NewEvent, NewTimer, ProcessStatus, TaskStatus
from tests.support.engine.replica import QUIET, Env, Replica, answering
from tests.support.engine.replica import running_replica as running

pytestmark = pytest.mark.asyncio(loop_scope="module")

THEN = dt.datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=dt.UTC)
LATER = THEN + dt.timedelta(hours=1)
HISTORY = [
    NewEvent(payload=b"e1", format_version=1, metadata={"a": 1}, occurred_at=THEN),
    NewEvent(payload=b"e2", format_version=2),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


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


async def test_an_imported_process_goes_on_from_its_history(env: Env) -> None:
    await env.client.put("p", state=b"s", history=HISTORY)

    await env.client.call("p", b"e3")

    request = env.asked_for("p")[0]
    assert [event.payload for event in request.history] == [b"e1", b"e2"]
    assert request.process.aux_state == b"s"
    history = (await env.client.get("p")).history
    assert [event.event_id for event in history] == [1, 2, 3]


class TestRunning:
    async def test_with_a_timer_long_overdue_fires_it_at_once(self, env: Env) -> None:
        env.processor.on_process("p", answering(b"fired"))
        await env.client.put("p", timer=NewTimer(at=THEN))
        await env.settled("p")

        assert (await env.client.get("p")).history[0].payload == b"fired"


async def test_an_import_is_in_the_trace_as_a_finished_init_with_its_events(env: Env) -> None:
    put = await env.client.put("p", history=HISTORY)

    (task,) = (await env.client.trace("p")).tasks

    assert (task.task_id, task.type, task.status) == (put.task_id, "init", TaskStatus.FINISHED)
    assert [event.payload for event in task.events] == [b"e1", b"e2"]


async def test_a_process_with_a_long_history_can_be_put_and_removed(env: Env) -> None:
    await env.client.put("p", history=[NewEvent(payload=b"%d" % n) for n in range(5_000)])
    before = (await env.client.get("p")).process.last_event_id

    await env.client.remove("p")

    await env.client.put("p", history=HISTORY)
    assert before == 5_000
    assert (await env.client.get("p")).process.last_event_id == 2
