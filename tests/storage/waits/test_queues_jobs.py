"""Queues: jobs that run with their nodes, and schedules, are counted beside what waits."""

import dataclasses
import datetime as dt

import pytest

from progressor.domain.views.activity import Queue
from progressor.storage.replicas.queues import LATE_AFTER
from tests.support.clock import ManualClock
from tests.support.storage.jobs.store import JobStore, begun
from tests.support.storage.schedules import MINUTE, schedule_store
from tests.support.storage.store import NAMESPACE, Store

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS = ("jobs", "waiting_nodes", "ready_nodes", "running_nodes", "failed_nodes")
SCHEDULES = ("schedules", "paused_schedules", "late_schedules")


async def counted(store: Store, *fields: str, count_max: int = 10_000) -> tuple[object, ...]:
    """Return these fields of the only queue."""
    [queue] = await store.queues.count([NAMESPACE.name], count_max=count_max)
    assert set(fields) <= {it.name for it in dataclasses.fields(Queue)}
    return tuple(getattr(queue, field) for field in fields)


async def test_jobs_that_run_are_counted_with_their_nodes(store: Store, jobs: JobStore) -> None:
    await begun(jobs)
    await begun(jobs)
    await jobs.control.cancel(await begun(jobs), "")

    assert await counted(store, *JOBS) == (2, 6, 0, 2, 0)


async def test_schedules_are_counted_by_whether_they_go_on(
    store: Store, clock: ManualClock
) -> None:
    timetable = schedule_store(store)
    for paused in (False, False, True):
        await timetable.create(paused=paused)
    before = await counted(store, *SCHEDULES)

    clock.advance(MINUTE + LATE_AFTER + dt.timedelta(seconds=1))
    late = await counted(store, *SCHEDULES)
    await timetable.run_due()

    assert before == (2, 1, 0)
    assert late == (2, 1, 2)
    assert await counted(store, *SCHEDULES) == (2, 1, 0)


async def test_of_more_schedules_than_the_limit_so_many_are_counted(store: Store) -> None:
    timetable = schedule_store(store)
    for _ in range(3):
        await timetable.create()

    assert await counted(store, "schedules", count_max=2) == (2,)
