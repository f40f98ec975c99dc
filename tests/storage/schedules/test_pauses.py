"""Schedules of a paused namespace: nothing of them runs or is deleted, and no other one waits."""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator

import psycopg
import pytest

from progressor.domain.schedules.schedule import OverlapPolicy, Schedule, schedule_key
from progressor.storage.schedules.runs import FIRST, DeletedTo
from tests.support.builders import make_namespace
from tests.support.storage.schedules import MINUTE, ScheduleStore, a_spec, process_of
from tests.support.storage.store import create_namespace

QUEUE_ONE = a_spec(overlap_policy=OverlapPolicy.QUEUE_ONE)
HOUR = 60 * MINUTE
OTHER = make_namespace("running")


@contextlib.asynccontextmanager
async def paused(timetable: ScheduleStore, name: str = "orders") -> AsyncIterator[None]:
    await timetable.store.namespaces.pause([name], reason="why", author="ada")
    try:
        yield
    finally:
        await timetable.store.namespaces.resume(name)


async def queued(timetable: ScheduleStore, count: int = 1) -> list[Schedule]:
    """Return schedules with a queued run that may start: the one before was removed."""
    made = [await timetable.create(QUEUE_ONE) for _ in range(count)]
    await timetable.after(2 * MINUTE)
    for schedule in made:
        await timetable.store.remove(process_of((await timetable.last(schedule))[0]))
    return made


@pytest.mark.parametrize(
    ("policy", "verdicts", "process_count"),
    [
        (OverlapPolicy.SKIP, ["started", "skipped", "skipped"], 1),
        (OverlapPolicy.QUEUE_ONE, ["started", "queued", "skipped"], 1),
        (OverlapPolicy.ALLOW, ["started", "started", "started"], 3),
        (OverlapPolicy.CANCEL_PREVIOUS, ["started", "started", "started"], 3),
    ],
)
async def test_what_came_due_in_a_pause_runs_by_its_policy_once_resumed(
    timetable: ScheduleStore, policy: OverlapPolicy, verdicts: list[str], process_count: int
) -> None:
    await timetable.create(a_spec(overlap_policy=policy))
    async with paused(timetable):
        assert await timetable.after(3 * MINUTE) == []
        assert await timetable.runs.seconds_until_due() is None

    assert await timetable.run_due() == verdicts
    assert await timetable.count("processes") == process_count


async def test_what_is_older_than_the_window_at_the_end_of_a_pause_is_missed(
    timetable: ScheduleStore,
) -> None:
    schedule = await timetable.create(
        a_spec(overlap_policy=OverlapPolicy.ALLOW, catch_up_window=2 * MINUTE)
    )
    async with paused(timetable):
        await timetable.after(HOUR)
    verdicts = await timetable.run_due()

    assert (verdicts[0], set(verdicts[1:])) == ("missed", {"started"})
    found = await timetable.schedules.get(schedule.key)
    assert found.missed_count + found.started_count == 60


async def test_another_namespace_runs_beside_a_paused_one(
    timetable: ScheduleStore, database: str
) -> None:
    create_namespace(database, OTHER)
    held = await timetable.create()
    key = schedule_key(OTHER.name, "beside")
    await timetable.schedules.create(key, a_spec(), paused=False, note="")
    async with paused(timetable):
        until = await timetable.runs.seconds_until_due()
        ran = await timetable.after(MINUTE)
        states = await timetable.states(held)
    await timetable.schedules.delete(key, expected_revision=0)

    assert until is not None
    assert 0 < until <= MINUTE.total_seconds()
    assert (ran, states) == (["started"], [])
    assert await timetable.run_due() == ["started"]


async def test_two_replicas_run_once_beside_a_paused_namespace(
    timetable: ScheduleStore, rival: ScheduleStore, database: str
) -> None:
    create_namespace(database, OTHER)
    async with paused(timetable, OTHER.name):
        made = [await timetable.create() for _ in range(3)]
        timetable.clock.advance(MINUTE)
        first = await timetable.runs.claim_due(limit=2, lease=MINUTE)
        second = await rival.runs.claim_due(limit=2, lease=MINUTE)
        third = await timetable.runs.claim_due(limit=2, lease=MINUTE)

    claimed = {it.schedule.key for it in (*first, *second)}
    assert (len(first), len(second), len(third)) == (2, 1, 0)
    assert claimed == {it.key for it in made}


async def test_a_queued_run_waits_for_the_end_of_a_pause(timetable: ScheduleStore) -> None:
    [schedule] = await queued(timetable)
    async with paused(timetable):
        assert await timetable.look_at_queue() == []
        assert "queued" in await timetable.states(schedule)

    assert await timetable.look_at_queue() == ["started"]


async def test_the_queue_of_a_paused_namespace_is_looked_at_once_a_slot(
    timetable: ScheduleStore, database: str
) -> None:
    await queued(timetable, 4)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "ALTER TABLE progressor.schedule_runs DISABLE TRIGGER ALL;"
            "UPDATE progressor.schedule_runs SET slot = 5;"
            "ALTER TABLE progressor.schedule_runs ENABLE TRIGGER ALL;"
            "UPDATE progressor.schedules SET slot = 5"
        )
    before = await timetable.runs.find_queued(after=FIRST, limit=10)
    async with paused(timetable):
        within = await timetable.runs.find_queued(after=FIRST, limit=10)
        behind = await timetable.runs.find_queued(after=within[0].schedule.key, limit=10)

    assert [it.is_ready for it in before] == [True] * 4
    assert [it.is_ready for it in within] == [False]
    assert behind == ()


async def test_old_runs_of_a_paused_namespace_are_kept(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.ALLOW))
    await timetable.after(3 * MINUTE)
    for run in await timetable.last(schedule):
        await timetable.store.remove(process_of(run))

    async def delete_old() -> int:
        slot, age = schedule.key.slot, dt.timedelta()
        found = await timetable.runs.delete_old(slot, DeletedTo(), kept=0, age=age, limit=10)
        return found.count

    async with paused(timetable):
        assert await delete_old() == 0
    assert await delete_old() == 3
