"""Timers over gRPC: when they fire, what they are handed, and what replaces them."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk import TaskTrace
from progressor.v1.types_pb2 import (
    DIRECTION_BACKWARD,
    TASK_TYPE_CALL,
    TASK_TYPE_INIT,
    TASK_TYPE_TIMEOUT,
    HistoryRange,
    SetTimer,
)
from tests.support.engine.replica import (
    NOW_AND_THEN,
    QUIET,
    Env,
    Replica,
    answering,
    open_env,
    refusal,
    response,
    running_replica,
    timer,
)
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = 3600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, retry_policy=NOW_AND_THEN) as env:
        yield env


async def tasks_of(env: Env) -> tuple[TaskTrace, ...]:
    return (await env.client.trace("p")).tasks


def types_asked(env: Env) -> list[int]:
    return [request.task.type for request in env.asked_for("p")]


def instant(seconds_from_now: float) -> Timestamp:
    moment = Timestamp()
    moment.FromDatetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds_from_now))
    return moment


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

    async def test_a_timer_at_an_instant_fires_then(self, env: Env) -> None:
        at = instant(0.1)
        await env.running("p", answering(set_timer=SetTimer(at=at)), answering(b"fired"))
        await env.client.call("p")
        await env.settled("p", 3)

        timeout = (await tasks_of(env))[2]
        due_at = at.ToDatetime(dt.UTC)
        assert timeout.scheduled_at == due_at
        assert timeout.started_at is not None
        assert timeout.started_at >= due_at

    @pytest.mark.parametrize(
        "due_now",
        [
            pytest.param(SetTimer(), id="no time given"),
            pytest.param(SetTimer(after=Duration()), id="after nothing"),
            pytest.param(SetTimer(at=Timestamp(seconds=1)), id="at an instant long past"),
        ],
    )
    async def test_a_timer_due_now_follows_in_the_same_worker(
        self, env: Env, due_now: SetTimer
    ) -> None:
        claimed = env.points.count("timers_claimed")
        env.processor.on_process("p", answering(set_timer=due_now), answering(b"fired"))
        await env.client.start("p")
        await env.settled("p", 2)

        assert types_asked(env) == [TASK_TYPE_INIT, TASK_TYPE_TIMEOUT]
        assert env.points.count("timers_claimed") == claimed

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


class TestWhatItIsHanded:
    async def test_its_args_and_its_own_attempt(self, env: Env) -> None:
        await env.timed("p", after=0, args=b"tick")
        await env.settled("p", 2)

        task = env.asked_for("p")[1].task
        assert (task.args, task.attempt) == (b"tick", 1)

    async def test_its_own_range_of_the_history(self, env: Env) -> None:
        newest_two = HistoryRange(limit=2, direction=DIRECTION_BACKWARD)
        env.processor.on_process(
            "p",
            answering(b"1", b"2", b"3", set_timer=timer(history_range=newest_two)),
            answering(),
        )
        await env.client.start("p")
        await env.settled("p", 2)

        assert [it.payload for it in env.asked_for("p")[1].history] == [b"3", b"2"]

    async def test_its_own_step_timeout(self, env: Env) -> None:
        quick = Duration(nanos=500_000_000)
        await env.timed("p", Hang(), answering(b"fired"), after=0, step_timeout=quick)
        await env.settled("p", 3)

        first, second = env.asked_for("p")[1:]
        assert (first.task.attempt, second.task.attempt) == (1, 2)
        # The namespace would have waited for 30 s.
        assert second.deadline.ToDatetime() - first.deadline.ToDatetime() < dt.timedelta(seconds=25)

    async def test_its_own_step_timeout_also_where_it_fires_later(self, env: Env) -> None:
        quick = Duration(seconds=3)
        await env.timed("p", after=0.02, step_timeout=quick)
        await env.settled("p", 2)

        started_at = (await tasks_of(env))[1].started_at
        assert started_at is not None
        deadline = env.asked_for("p")[1].deadline.ToDatetime(dt.UTC)
        assert deadline - started_at < dt.timedelta(seconds=10)


class TestReplacing:
    async def test_a_timer_that_was_replaced_does_not_fire(self, env: Env) -> None:
        await env.timed("p", answering(set_timer=timer(HOUR)), after=0.6)
        await env.client.call("p")
        env.processor.on_process("q", answering(set_timer=timer(0.7)), answering())
        await env.client.start("q")
        await env.settled("q", 2)

        assert types_asked(env) == [TASK_TYPE_INIT, TASK_TYPE_CALL]


class TestRemove:
    @pytest.mark.parametrize("after", [0.0, 0.05])
    async def test_removes_the_process_without_asking_the_processor(
        self, env: Env, after: float
    ) -> None:
        await env.timed("p", after=after, remove=True)
        await env.points.wait("settled", key=env.key("p"), settlement="Remove")

        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"
        assert types_asked(env) == [TASK_TYPE_INIT]

    async def test_waits_for_the_call_in_hand(self, env: Env) -> None:
        due_now = response(response=b"answered", set_timer=SetTimer(remove=True))
        hang, _ = await env.busy("p", Answer(), answer=due_now)
        second = await env.client.call("p", b"2", accept_only=True)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(env.client.await_task("p", task_id=second.task_id))
            await env.points.wait("awaited", key=env.key("p"))
            hang.released.set()
        await env.points.wait("settled", key=env.key("p"), settlement="Remove")

        assert awaited.result().response == b"2"
        assert (await refusal(env.client.get("p"))).reason == "PROCESS_NOT_FOUND"


class TestCallsGoFirst:
    async def test_a_timer_that_comes_due_behind_a_call_fires_after_it(self, env: Env) -> None:
        hang = Hang()
        await env.timed("p", hang, answering(b"fired"), after=0.5)
        accepted = await env.client.call("p", b"call", accept_only=True)
        await env.asked("p", 2)
        # Another process says when the timer's time has passed.
        env.processor.on_process("q", answering(set_timer=timer(0.6)), answering())
        await env.client.start("q")
        await env.settled("q", 2)
        hang.released.set()
        await env.settled("p", 3)

        assert types_asked(env) == [TASK_TYPE_INIT, TASK_TYPE_CALL, TASK_TYPE_TIMEOUT]
        assert (await env.client.get("p")).history[0].task_id == accepted.task_id
