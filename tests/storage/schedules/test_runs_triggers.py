"""Triggers: a schedule runs now, besides its own instants; and what runs report."""

import asyncio
import dataclasses
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import job_errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.job import NodeSpec
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    Decision,
    JobTarget,
    OverlapPolicy,
    ScheduleRun,
    ScheduleRunCause,
    ScheduleRunState,
    StartTarget,
    Target,
    decide,
)
from tests.support.clock import ManualClock
from tests.support.storage.schedules import (
    MINUTE,
    ScheduleStore,
    a_spec,
    fresh_schedule_key,
    schedule_store,
)
from tests.support.storage.store import NAMESPACE, Store

pytestmark = pytest.mark.asyncio(loop_scope="module")

Observer = psycopg.Connection[Any]


async def test_a_trigger_runs_now_whether_or_not_the_schedule_is_paused(
    timetable: ScheduleStore,
) -> None:
    schedule = await timetable.create(paused=True)

    run = await timetable.schedule_runs.trigger(schedule.key, policy=None, idempotency_key=None)

    assert (run.instant, run.state) == (timetable.clock.now(), ScheduleRunState.RUNNING)
    assert await timetable.count("processes") == 1
    again = await timetable.schedules.get(schedule.key)
    assert (again.upcoming, again.started_count) == (None, 1)


async def test_a_trigger_leaves_what_is_due_as_it_is(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE / 2)

    await timetable.schedule_runs.trigger(
        schedule.key, policy=OverlapPolicy.ALLOW, idempotency_key=None
    )

    assert (await timetable.schedules.get(schedule.key)).upcoming == schedule.upcoming
    assert await timetable.after(MINUTE / 2) == ["skipped"]


async def test_a_trigger_with_a_key_runs_once(
    timetable: ScheduleStore, rival: ScheduleStore
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.ALLOW))
    first = await timetable.schedule_runs.trigger(schedule.key, policy=None, idempotency_key="k")
    timetable.clock.advance(MINUTE / 2)

    second = await rival.schedule_runs.trigger(schedule.key, policy=None, idempotency_key="k")

    assert second.instant == first.instant
    assert await timetable.count("processes") == 1


async def test_triggers_of_one_key_at_once_run_once(
    timetable: ScheduleStore, rival: ScheduleStore
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.ALLOW))

    found = await asyncio.gather(
        *(
            each.schedule_runs.trigger(schedule.key, policy=None, idempotency_key="k")
            for each in (timetable, rival) * 5
        )
    )

    assert len({each.instant for each in found}) == 1
    assert await timetable.count("processes") == 1


class TickingClock(ManualClock):
    """Time that goes on with each look."""

    def pinned(self) -> dt.datetime | None:
        self.advance(dt.timedelta(microseconds=1))
        return super().pinned()


async def test_triggers_of_one_key_at_different_instants_run_once(
    store: Store,
) -> None:
    ticking = schedule_store(dataclasses.replace(store, clock=TickingClock(store.clock.now())))
    schedule = await ticking.create(a_spec(overlap_policy=OverlapPolicy.ALLOW))

    found = await asyncio.gather(
        *(
            ticking.schedule_runs.trigger(schedule.key, policy=None, idempotency_key="k")
            for _ in range(10)
        )
    )

    assert len({each.instant for each in found}) == 1
    assert await ticking.count("processes") == 1


async def test_a_trigger_of_a_schedule_that_is_not_there_is_refused(
    timetable: ScheduleStore,
) -> None:
    with pytest.raises(job_errors.ScheduleNotFoundError):
        await timetable.schedule_runs.trigger(
            fresh_schedule_key(), policy=None, idempotency_key=None
        )


@pytest.mark.parametrize("has_queued", [False, True])
@pytest.mark.parametrize("is_at_work", [False, True])
@pytest.mark.parametrize("policy", OverlapPolicy)
async def test_what_becomes_of_a_run_is_what_the_table_says(
    timetable: ScheduleStore, policy: OverlapPolicy, is_at_work: bool, has_queued: bool
) -> None:
    schedule = await timetable.create(paused=True)

    async def trigger(policy: OverlapPolicy) -> ScheduleRun:
        timetable.clock.advance(dt.timedelta(seconds=1))
        return await timetable.schedule_runs.trigger(
            schedule.key, policy=policy, idempotency_key=None
        )

    first = await trigger(OverlapPolicy.SKIP)
    if has_queued:
        assert (await trigger(OverlapPolicy.QUEUE_ONE)).state is ScheduleRunState.QUEUED
    if not is_at_work:
        await timetable.store.remove(process_key("orders", first.process_id or ""))

    run = await trigger(policy)

    says = decide(policy, ScheduleRunCause.TRIGGER, is_at_work=is_at_work, has_queued=has_queued)
    assert (
        run.state
        is {
            Decision.START: ScheduleRunState.RUNNING,
            Decision.QUEUE: ScheduleRunState.QUEUED,
            Decision.SKIP: ScheduleRunState.SKIPPED,
        }[says]
    )


GATED = Constraints(gates={"one": 1})
CALLED = "called"


@pytest.mark.parametrize(
    "target",
    [
        StartTarget(),
        StartTarget(constraints=GATED),
        JobTarget(nodes=(NodeSpec(name="a"),)),
        CallTarget(task_type=TaskType.CALL, process_id=CALLED),
        CallTarget(task_type=TaskType.CALL, process_id=CALLED, constraints=GATED),
    ],
    ids=["start", "gated start", "job", "call", "gated call"],
)
async def test_what_a_trigger_starts_goes_on_with_its_trace(
    timetable: ScheduleStore, observer: Observer, target: Target
) -> None:
    context = {"traceparent": f"00-{1:032x}-{2:016x}-01"}
    if isinstance(target, CallTarget):
        await timetable.store.started(process_key(NAMESPACE.name, CALLED))
    schedule = await timetable.create(a_spec(target))

    run = await timetable.schedule_runs.trigger(
        schedule.key, policy=None, idempotency_key=None, trace_context=context
    )

    assert run.state is ScheduleRunState.RUNNING
    query = "SELECT trace_context FROM progressor.tasks WHERE task_id = %s"
    assert observer.execute(query, [run.task_id]).fetchall() == [(context,)]
