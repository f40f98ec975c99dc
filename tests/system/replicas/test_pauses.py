"""A paused namespace starts no step in any replica; resumed, it goes on where it was."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from grpc import StatusCode

from progressor.sdk import (
    Every,
    NamespaceConfig,
    NewTimer,
    ScheduledStart,
    ScheduleSpec,
    WaitCause,
)
from progressor.storage.processes import results
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    running_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROCESSES = 20
DUE = 200
WHY = {"reason": "charged twice", "author": "ada"}


@pytest_asyncio.fixture(loop_scope="module")
async def env(second_replica: Replica) -> AsyncIterator[Env]:
    async with open_env(second_replica, one_at_a_time=False) as env:
        yield env


@pytest.fixture
def notified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether notifications of pauses get through."""
    if not request.param:
        read = results._word
        nothing = results.Word(revoked=(0,))
        monkeypatch.setattr(
            results, "_word", lambda payload: nothing if payload == "pauses" else read(payload)
        )
    return bool(request.param)


async def beat_since(*replicas: Points) -> None:
    """Wait for a heartbeat of each replica that was sent after now, and taken in."""
    for points in replicas:
        await points.wait("beat", points.count("beat") + 3)


async def paused(env: Env, **fields: Any) -> NamespaceConfig:
    return await env.client.namespaces.pause(env.namespace, **{**WHY, **fields})


async def resume(env: Env) -> NamespaceConfig:
    return await env.client.namespaces.resume(env.namespace)


@pytest.mark.parametrize("notified", [True, False], indirect=True)
async def test_no_step_begins_later_than_one_heartbeat_after_a_pause(
    database: str, env: Env, notified: bool
) -> None:
    del notified
    async with (
        running_replica(database, {"replica.name": "third"}) as third,
        env.client_at(third.address) as there,
    ):
        for number in range(PROCESSES):
            env.processor.on_process(f"p{number}", answering(b"tick", set_timer=timer()))
            client = there if number % 2 else env.client
            await client.start(f"p{number}", accept_only=True)
        await env.processor.received(10 * PROCESSES)

        await paused(env)
        await beat_since(env.points, third.points)
        begun_count = len(env.processor.requests)
        await beat_since(env.points, third.points)
        assert len(env.processor.requests) == begun_count

        for number in range(PROCESSES):
            [wait] = (await there.get(f"p{number}")).waits
            assert (wait.cause, wait.pause and wait.pause.author) == (WaitCause.PAUSED, "ada")
        await there.namespaces.resume(env.namespace)
        await env.processor.received(begun_count + 10 * PROCESSES)
        for replica in (env.points, third.points):
            assert replica.count("resumed", names=(env.namespace,))
        # All of them go on: nothing was lost with what was claimed in the moment of the pause.
        asked_before = {it.task.task_id for it in env.processor.requests[:begun_count]}
        for number in range(PROCESSES):
            await env.asked(f"p{number}", len(env.asked_for(f"p{number}")) + 1)
        attempts = [it.task.attempt for it in env.processor.requests]
        assert (set(attempts), len(asked_before)) == ({1}, begun_count)


async def test_what_is_due_at_the_end_of_a_pause_is_no_find_of_a_scan(
    database: str, env: Env
) -> None:
    async with running_replica(database, {"replica.name": "third"}) as third:
        await paused(env)
        gate = asyncio.Semaphore(64)

        async def put(number: int) -> None:
            async with gate:
                await env.client.put(f"p{number}", timer=NewTimer())

        async with asyncio.TaskGroup() as group:
            for number in range(DUE):
                group.create_task(put(number))
        await beat_since(env.points, third.points)
        asked_count = len(env.processor.requests)
        await resume(env)
        await env.processor.received(DUE, seconds=2 * PATIENCE_SECONDS)
        await beat_since(env.points, third.points)

        found = env.points.count("scan_found") + third.points.count("scan_found")
        assert (asked_count, found, len(env.processor.requests)) == (0, 0, DUE)


async def test_a_running_step_ends_and_what_follows_waits(env: Env) -> None:
    hang, task_id = await env.busy("p", answering(response=b"next"))
    await paused(env)
    following = await env.client.call("p", b"next", accept_only=True)
    hang.released.set()
    assert (await env.client.await_task("p", task_id=task_id)).response == b"busy"

    asked_count = len(env.asked_for("p"))
    [wait] = (await env.client.get("p")).waits
    await resume(env)
    answer = await env.client.await_task("p", task_id=following.task_id)

    assert (asked_count, wait.cause, answer.response) == (2, WaitCause.PAUSED, b"next")
    assert "charged twice" in wait.explanation


async def test_requests_wait_or_are_refused_if_asked_so(env: Env) -> None:
    await env.running("p")
    await env.broken("broken", answering(response=b"repaired"))
    first = await paused(env)
    started = await env.client.start("waits", accept_only=True)
    again = await paused(env, reason="still", refuse=True)

    statuses = [
        await refusal(request)
        for request in (
            env.client.start("q"),
            env.client.call("p"),
            env.client.notify("p"),
        )
    ]
    repair = await env.client.repair("broken", accept_only=True)
    await env.client.cancel("waits", task_id=started.task_id)
    await env.client.remove("p")
    asked = {it.process.process_id for it in env.processor.requests}
    resumed = await resume(env)
    await env.settled("broken", task_id=repair.task_id)

    assert {(it.code, it.reason, it.metadata["detail"]) for it in statuses} == {
        (StatusCode.FAILED_PRECONDITION, "NAMESPACE_PAUSED", "still")
    }
    assert all(it.retry_after == dt.timedelta(seconds=5) for it in statuses)
    assert asked == {"p", "broken"}
    assert first.pause is not None
    assert again.pause is not None
    assert (again.pause.paused_at, again.pause.refuses_requests) == (first.pause.paused_at, True)
    assert (first.pause.reason, again.pause.reason, resumed.pause) == (
        "charged twice", "still", None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": " "}, "reason"),
        ({"reason": "x" * 1025}, "reason"),
        ({"author": "x" * 257}, "author"),
        ({"author": "\0"}, "author"),
    ],
)
async def test_a_bad_pause_is_refused_by_name(env: Env, fields: dict[str, str], field: str) -> None:
    status = await refusal(paused(env, **fields))

    assert [violation.field for violation in status.violations] == [field]
    assert (await env.client.namespaces.get(env.namespace)).pause is None


async def test_a_schedule_does_not_run_and_catches_up(env: Env) -> None:
    await paused(env)
    spec = ScheduleSpec(target=ScheduledStart(), times=Every(1))
    schedule = await env.client.schedules.create("s", spec)
    missed = schedule.next_instant
    assert missed is not None

    while (await env.client.replicas.activity()).read_at < missed:
        await beat_since(env.points)
    before = (await env.client.schedules.get("s")).last_runs
    await resume(env)
    await env.points.wait("schedule_run", namespace=env.namespace, instant=missed)
    await env.client.schedules.delete("s")

    assert before == ()


async def test_a_paused_start_claims_nothing(database: str, env: Env) -> None:
    await env.timed("p", answering(b"fired"), after=0.3)
    namespace = await paused(env)
    await beat_since(env.points)
    async with running_replica(database, paused=True) as there:
        found = [it.pause async for it in env.client_at(there.address).namespaces.list()]
        reasons = {it.reason for it in found if it is not None}
        await beat_since(there.points)
        asked_count = len(env.asked_for("p"))
        await resume(env)
        await env.asked("p", 2)
    assert namespace.pause is not None
    assert (len(found), None in found) == (len(found), False)
    assert (reasons >= {"charged twice"}, asked_count) == (True, 1)
