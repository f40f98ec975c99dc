"""Timers over gRPC: when they fire, what they are handed, and what replaces them."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk import ProcessStatus, TaskStatus, TaskTrace
from progressor.v1.types_pb2 import (
    DIRECTION_BACKWARD,
    TASK_TYPE_CALL,
    TASK_TYPE_INIT,
    TASK_TYPE_TIMEOUT,
    HistoryRange,
    SetTimer,
)
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    NOW_AND_THEN,
    QUIET,
    Replica,
    Stage,
    answering,
    open_stage,
    refusal,
    response,
    running_replica,
    timer,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = 3600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database, QUIET) as replica:
        yield replica
        assert replica.points.count("scan_found") == 0


@pytest_asyncio.fixture(loop_scope="module")
async def stage(replica: Replica) -> AsyncIterator[Stage]:
    async with open_stage(replica, retry_policy=NOW_AND_THEN) as stage:
        yield stage


async def tasks_of(stage: Stage) -> tuple[TaskTrace, ...]:
    return (await stage.client.trace("p")).tasks


def types_asked(stage: Stage) -> list[int]:
    return [request.task.type for request in stage.asked_for("p")]


def instant(seconds_from_now: float) -> Timestamp:
    moment = Timestamp()
    moment.FromDatetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds_from_now))
    return moment


class TestDueTime:
    async def test_a_timer_after_a_while_fires_by_itself_and_not_before(self, stage: Stage) -> None:
        claimed = stage.points.count("timers_claimed")
        await stage.timed("p", answering(b"fired"), after=0.05)
        await stage.settled("p", 2)

        init, timeout = await tasks_of(stage)
        assert init.finished_at is not None
        assert timeout.scheduled_at == init.finished_at + dt.timedelta(seconds=0.05)
        assert timeout.started_at is not None
        assert timeout.started_at >= timeout.scheduled_at
        assert stage.points.count("timers_claimed") == claimed + 1

    async def test_a_timer_at_an_instant_fires_then(self, stage: Stage) -> None:
        at = instant(0.1)
        await stage.running("p", answering(set_timer=SetTimer(at=at)), answering(b"fired"))
        await stage.client.call("p")
        await stage.settled("p", 3)

        timeout = (await tasks_of(stage))[2]
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
        self, stage: Stage, due_now: SetTimer
    ) -> None:
        claimed = stage.points.count("timers_claimed")
        stage.processor.on_process("p", answering(set_timer=due_now), answering(b"fired"))
        await stage.client.start("p")
        await stage.settled("p", 2)

        assert types_asked(stage) == [TASK_TYPE_INIT, TASK_TYPE_TIMEOUT]
        assert stage.points.count("timers_claimed") == claimed

    async def test_a_process_that_drives_itself_takes_step_after_step(self, stage: Stage) -> None:
        stage.processor.on_process(
            "p",
            *[answering(b"tick", set_timer=timer()) for _ in range(20)],
            answering(b"last"),
        )
        await stage.client.start("p")
        await stage.settled("p", 21)

        history = (await stage.client.get("p")).history
        assert [event.event_id for event in history] == list(range(1, 22))
        assert history[-1].payload == b"last"

    async def test_a_timer_far_ahead_waits_and_says_until_when(self, stage: Stage) -> None:
        await stage.timed("p", after=HOUR)

        snapshot = await stage.client.get("p")

        assert snapshot.timer is not None
        assert snapshot.timer.type == "timeout"
        (wait,) = snapshot.waits
        assert (wait.cause, wait.until) == ("timer", snapshot.timer.due_at)


class TestWhatItIsHanded:
    async def test_its_args_and_its_own_attempt(self, stage: Stage) -> None:
        await stage.timed("p", after=0, args=b"tick")
        await stage.settled("p", 2)

        task = stage.asked_for("p")[1].task
        assert (task.args, task.attempt) == (b"tick", 1)

    async def test_its_own_range_of_the_history(self, stage: Stage) -> None:
        newest_two = HistoryRange(limit=2, direction=DIRECTION_BACKWARD)
        stage.processor.on_process(
            "p",
            answering(b"1", b"2", b"3", set_timer=timer(history_range=newest_two)),
            answering(),
        )
        await stage.client.start("p")
        await stage.settled("p", 2)

        assert [it.payload for it in stage.asked_for("p")[1].history] == [b"3", b"2"]

    async def test_no_history_where_its_range_has_none(self, stage: Stage) -> None:
        none = HistoryRange(limit=0)
        stage.processor.on_process(
            "p", answering(b"1", set_timer=timer(history_range=none)), answering()
        )
        await stage.client.start("p")
        await stage.settled("p", 2)

        assert list(stage.asked_for("p")[1].history) == []

    async def test_its_own_step_timeout(self, stage: Stage) -> None:
        quick = Duration(nanos=500_000_000)
        await stage.timed("p", Hang(), answering(b"fired"), after=0, step_timeout=quick)
        await stage.settled("p", 3)

        first, second = stage.asked_for("p")[1:]
        assert (first.task.attempt, second.task.attempt) == (1, 2)
        # The namespace would have waited for 30 s.
        assert second.deadline.ToDatetime() - first.deadline.ToDatetime() < dt.timedelta(seconds=25)

    async def test_its_own_step_timeout_also_where_it_fires_later(self, stage: Stage) -> None:
        quick = Duration(seconds=3)
        await stage.timed("p", after=0.02, step_timeout=quick)
        await stage.settled("p", 2)

        started_at = (await tasks_of(stage))[1].started_at
        assert started_at is not None
        deadline = stage.asked_for("p")[1].deadline.ToDatetime(dt.UTC)
        assert deadline - started_at < dt.timedelta(seconds=10)


class TestReplacing:
    async def test_a_new_timer_replaces_the_old_one(self, stage: Stage) -> None:
        await stage.timed("p", answering(set_timer=timer(HOUR)), after=2 * HOUR)
        old = (await stage.client.get("p")).timer
        await stage.client.call("p")
        new = (await stage.client.get("p")).timer

        assert old is not None
        assert new is not None
        assert new.due_at < old.due_at
        statuses = {task.task_id: task.status for task in await tasks_of(stage)}
        assert statuses[old.task_id] is TaskStatus.CANCELLED
        assert statuses[new.task_id] is TaskStatus.WAITING

    async def test_a_timer_that_was_replaced_does_not_fire(self, stage: Stage) -> None:
        await stage.timed("p", answering(set_timer=timer(HOUR)), after=0.6)
        await stage.client.call("p")
        stage.processor.on_process("q", answering(set_timer=timer(0.7)), answering())
        await stage.client.start("q")
        await stage.settled("q", 2)

        assert types_asked(stage) == [TASK_TYPE_INIT, TASK_TYPE_CALL]

    async def test_a_timer_can_set_the_next_one(self, stage: Stage) -> None:
        again = answering(b"tick", set_timer=timer(0.01))
        await stage.timed("p", again, again, answering(b"last"), after=0.01)
        await stage.settled("p", 4)

        assert [it.payload for it in (await stage.client.get("p")).history] == [
            b"tick",
            b"tick",
            b"last",
        ]

    async def test_a_timer_without_a_next_one_leaves_a_process_that_waits_for_calls(
        self, stage: Stage
    ) -> None:
        await stage.timed("p", answering(), after=0)
        await stage.settled("p", 2)

        snapshot = await stage.client.get("p")
        assert (snapshot.timer, snapshot.waits) == (None, ())
        assert snapshot.process.status is ProcessStatus.RUNNING


class TestRemove:
    @pytest.mark.parametrize("after", [0.0, 0.05])
    async def test_removes_the_process_without_asking_the_processor(
        self, stage: Stage, after: float
    ) -> None:
        await stage.timed("p", after=after, remove=True)
        await stage.points.wait("settled", key=stage.key("p"), settlement="Remove")

        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"
        assert types_asked(stage) == [TASK_TYPE_INIT]

    async def test_shows_as_a_timer_of_its_kind(self, stage: Stage) -> None:
        await stage.timed("p", after=HOUR, remove=True)

        timer_ = (await stage.client.get("p")).timer

        assert timer_ is not None
        assert timer_.type == "remove"

    async def test_waits_for_the_call_in_hand(self, stage: Stage) -> None:
        due_now = response(response=b"answered", set_timer=SetTimer(remove=True))
        hang, _ = await stage.busy("p", Answer(), answer=due_now)
        second = await stage.client.call("p", b"2", accept_only=True)
        async with asyncio.TaskGroup() as group:
            awaited = group.create_task(stage.client.await_task("p", task_id=second.task_id))
            await stage.points.wait("awaited", key=stage.key("p"))
            hang.released.set()
        await stage.points.wait("settled", key=stage.key("p"), settlement="Remove")

        assert awaited.result().response == b"2"
        assert (await refusal(stage.client.get("p"))).reason == "PROCESS_NOT_FOUND"


class TestCallsGoFirst:
    async def test_a_timer_that_comes_due_behind_a_call_fires_after_it(self, stage: Stage) -> None:
        hang = Hang()
        await stage.timed("p", hang, answering(b"fired"), after=0.5)
        accepted = await stage.client.call("p", b"call", accept_only=True)
        await stage.asked("p", 2)
        # Another process says when the timer's time has passed.
        stage.processor.on_process("q", answering(set_timer=timer(0.6)), answering())
        await stage.client.start("q")
        await stage.settled("q", 2)
        hang.released.set()
        await stage.settled("p", 3)

        assert types_asked(stage) == [TASK_TYPE_INIT, TASK_TYPE_CALL, TASK_TYPE_TIMEOUT]
        assert (await stage.client.get("p")).history[0].task_id == accepted.task_id
