"""One step at a time, in order, without a scan: calls that wait, and timers that come due."""

import asyncio
import datetime as dt

import pytest
from google.protobuf.duration_pb2 import Duration

from progressor.sdk import Reply as Answered
from progressor.v1.types_pb2 import (
    TASK_TYPE_INIT,
)
from tests.support.engine.reads import tasks_of, types_asked
from tests.support.engine.replica import (
    NOW_AND_THEN,
    Env,
    answering,
    refusal,
    running_replica,
    timer,
)
from tests.support.processor.scripted import Hang, ScriptedProcessor

pytestmark = pytest.mark.asyncio(loop_scope="module")

STEP_TIMEOUT = dt.timedelta(seconds=30)
ENV_OPTIONS = {"retry_policy": NOW_AND_THEN, "step_timeout": STEP_TIMEOUT}


async def test_a_started_process_answers_calls(database: str) -> None:
    async with (
        running_replica(database) as replica,
        ScriptedProcessor() as processor,
        replica.namespace("smoke", processor.target) as client,
    ):
        await client.start("p1", "hello")
        answer = await client.call("p1", "world")

        assert answer.response == "world"
        assert replica.points.count("scan_found") == 0


CALLS = 2_000
PROCESSES = 10


async def test_two_thousand_calls_on_ten_processes_are_each_answered_once_and_in_order(
    env: Env,
) -> None:
    names = [f"p{number}" for number in range(PROCESSES)]
    for name in names:
        await env.running(name)

    async def call(number: int) -> tuple[str, bytes, Answered]:
        name, args = names[number % PROCESSES], b"%d" % number
        return name, args, await env.client.call(name, args, timeout=60)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(call(number)) for number in range(CALLS)]

    results = [task.result() for task in tasks]
    assert all(answer.response == args for _, args, answer in results)
    assert len({answer.task_id for _, _, answer in results}) == CALLS
    for name in names:
        asked = [request.task.task_id for request in env.asked_for(name)][1:]
        history = (await env.client.get(name)).history
        answered = {answer.task_id: args for of, args, answer in results if of == name}
        assert asked == sorted(answered)
        assert [event.event_id for event in history] == list(range(1, CALLS // PROCESSES + 1))
        assert [event.task_id for event in history] == asked
        assert [event.payload for event in history] == [answered[task_id] for task_id in asked]


class TestHandOver:
    async def test_no_claim_stands_between_a_step_and_the_call_behind_it(self, env: Env) -> None:
        claims = ("timers_claimed", "backlog_claimed", "scan_found")
        before = [env.points.count(point) for point in claims]
        hang, _ = await env.busy("p")
        for _ in range(10):
            await env.client.notify("p")
        hang.released.set()
        await env.settled("p", 12)

        assert [env.points.count(point) for point in claims] == before

    async def test_a_call_finds_the_settlement_or_the_settlement_finds_the_call(
        self, env: Env
    ) -> None:
        # Steps and admissions race for the process's lock, a few hundred times.
        await env.running("p")

        async def caller(count: int) -> None:
            for _ in range(count):
                await env.client.call("p")

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(caller(50))

        assert (await env.client.get("p")).process.last_event_id == 200

    async def test_a_timer_and_calls_race_without_a_lost_wake_up(self, env: Env) -> None:
        # Each timer sets the next; calls come in between. All must go on to the end.
        ticks = [answering(b"t", set_timer=timer(0.002))] * 200
        env.processor.on_process("p", *ticks, answering(b"t"))
        await env.client.start("p")

        async def caller() -> None:
            for _ in range(100):
                await env.client.call("p")

        async with asyncio.TaskGroup() as group:
            group.create_task(caller())
            group.create_task(env.settled("p", 201))

        snapshot = await env.client.get("p")
        assert [event.event_id for event in snapshot.history] == list(
            range(1, snapshot.process.last_event_id + 1)
        )


class TestDueTime:
    async def test_a_timer_after_a_while_fires_by_itself_and_not_before(self, env: Env) -> None:
        claimed = env.points.count("timers_claimed")
        await env.timed("p", answering(b"fired"), after=0.05)
        await env.settled("p", 2)

        init, timeout = await tasks_of(env)
        assert init.finished_at is not None
        assert timeout.scheduled_at == init.finished_at + dt.timedelta(seconds=0.05)
        assert timeout.started_at is not None
        assert timeout.started_at >= timeout.scheduled_at
        assert env.points.count("timers_claimed") == claimed + 1

    async def test_of_timers_that_are_leased_ahead_none_is_asked_before_its_time(
        self, env: Env
    ) -> None:
        found = env.points.count("scan_found")
        names = [f"p{number}" for number in range(100)]
        async with asyncio.TaskGroup() as group:
            for number, name in enumerate(names):
                group.create_task(env.timed(name, after=0.3 + number * 0.003))
        for name in names:
            await env.settled(name, 2)

        for name in names:
            _, request = env.asked_for(name)
            asked_at = request.deadline.ToDatetime() - STEP_TIMEOUT
            assert asked_at >= request.task.scheduled_at.ToDatetime()
        assert env.points.count("scan_found") == found

    async def test_a_process_that_drives_itself_takes_step_after_step(self, env: Env) -> None:
        env.processor.on_process(
            "p",
            *[answering(b"tick", set_timer=timer()) for _ in range(20)],
            answering(b"last"),
        )
        await env.client.start("p")
        await env.settled("p", 21)

        history = (await env.client.get("p")).history
        assert [event.event_id for event in history] == list(range(1, 22))
        assert history[-1].payload == b"last"


async def test_a_step_gets_the_timeout_of_its_own(env: Env) -> None:
    quick = Duration(nanos=500_000_000)
    await env.timed("p", Hang(), answering(b"fired"), after=0, step_timeout=quick)
    await env.settled("p", 3)

    first, second = env.asked_for("p")[1:]
    assert (first.task.attempt, second.task.attempt) == (1, 2)
    # The namespace would have waited for 30 s.
    assert second.deadline.ToDatetime() - first.deadline.ToDatetime() < dt.timedelta(seconds=25)


@pytest.mark.parametrize("after", [0.0, 0.05])
async def test_a_removal_does_not_ask_the_processor(env: Env, after: float) -> None:
    await env.timed("p", after=after, remove=True)
    await env.points.wait("settled", key=env.key("p"), settlement="Remove")

    assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"
    assert types_asked(env) == [TASK_TYPE_INIT]
