"""Put: a process imported as it is, in each state, with its history and timer; and its end."""

import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from progressor.sdk import NewEvent, NewTimer, ProcessStatus, TaskStatus, TaskType
from progressor.v1.types_pb2 import TASK_TYPE_TIMEOUT
from tests.support.engine.replica import QUIET, Env, Replica, answering, open_env, refusal
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


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica) as env:
        yield env


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
    async def test_with_a_timer_fires_it_when_it_is_due(self, env: Env) -> None:
        env.processor.on_process("p", answering(b"fired"))
        await env.client.put("p", timer=NewTimer(after=0.05, args=b"tick"))
        await env.settled("p")

        task = env.asked_for("p")[0].task
        assert (task.type, task.args) == (TASK_TYPE_TIMEOUT, b"tick")

    async def test_with_a_timer_long_overdue_fires_it_at_once(self, env: Env) -> None:
        env.processor.on_process("p", answering(b"fired"))
        await env.client.put("p", timer=NewTimer(at=THEN))
        await env.settled("p")

        assert (await env.client.get("p")).history[0].payload == b"fired"

    async def test_with_a_timer_far_ahead_keeps_it(self, env: Env) -> None:
        ahead = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=30)

        await env.client.put("p", timer=NewTimer(at=ahead))

        timer = (await env.client.get("p")).timer
        assert timer is not None
        assert (timer.type, timer.status, timer.due_at) == ("timeout", TaskStatus.WAITING, ahead)

    async def test_with_a_remove_timer_is_removed(self, env: Env) -> None:
        await env.client.put("p", timer=NewTimer(after=0, remove=True))
        await env.settled("p", settlement="Remove")

        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"


class TestError:
    async def test_shows_why_and_refuses_calls(self, env: Env) -> None:
        await env.client.put("p", status=ProcessStatus.ERROR, detail="imported so")

        status = await refusal(env.client.call("p"))

        process = (await env.client.get("p")).process
        assert (process.status, process.detail) == (ProcessStatus.ERROR, "imported so")
        assert (status.reason, status.metadata["detail"]) == ("PROCESS_FAILED", "imported so")

    async def test_without_a_detail_is_in_error_all_the_same(self, env: Env) -> None:
        await env.client.put("p", status=ProcessStatus.ERROR)

        process = (await env.client.get("p")).process
        assert (process.status, process.detail) == (ProcessStatus.ERROR, "")

    async def test_can_be_repaired(self, env: Env) -> None:
        await env.client.put("p", status=ProcessStatus.ERROR, detail="x")

        answer = await env.client.repair("p", b"1")

        assert answer.response == b"1"
        assert (await env.client.get("p")).process.status is ProcessStatus.RUNNING

    async def test_broken_by_a_timeout_runs_it_again_on_a_simple_repair(self, env: Env) -> None:
        await env.client.put(
            "p", status=ProcessStatus.ERROR, detail="x", corrupted_by_type=TaskType.TIMEOUT
        )
        repaired = await env.client.simple_repair("p")
        await env.settled("p")

        assert env.asked_for("p")[0].task.task_id == repaired.task_id
        assert (await env.client.get("p")).process.status is ProcessStatus.RUNNING

    async def test_broken_by_a_remove_is_removed_on_a_simple_repair(self, env: Env) -> None:
        await env.client.put(
            "p", status=ProcessStatus.ERROR, detail="x", corrupted_by_type=TaskType.REMOVE
        )
        await env.client.simple_repair("p")
        await env.settled("p", settlement="Remove")

        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"


class TestFinished:
    async def test_keeps_its_result(self, env: Env) -> None:
        await env.client.put("p", status=ProcessStatus.FINISHED, result=b"42", history=HISTORY)

        process = (await env.client.get("p")).process
        assert (process.status, process.result) == (ProcessStatus.FINISHED, b"42")
        assert process.last_event_id == 2

    async def test_refuses_calls(self, env: Env) -> None:
        await env.client.put("p", status=ProcessStatus.FINISHED)

        assert (await refusal(env.client.call("p"))).reason == "PROCESS_FINISHED"


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
