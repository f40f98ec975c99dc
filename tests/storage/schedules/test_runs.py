"""StoredRuns: each instant once, with what it starts, by whichever replica comes first."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.processes.intent import Complete
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    IntervalTimes,
    OverlapPolicy,
    Schedule,
    ScheduleRun,
    ScheduleRunState,
    StartTarget,
)
from tests.support.storage.schedules import (
    MINUTE,
    ScheduleStore,
    a_spec,
    process_of,
)
from tests.support.storage.store import BROKEN, Store, success

pytestmark = pytest.mark.asyncio(loop_scope="module")

Observer = psycopg.Connection[Any]
LEASE = dt.timedelta(seconds=5)


async def end(store: Store, run: ScheduleRun, *, well: bool = True) -> None:
    """End what a run has started."""
    [claimed] = await store.claim(process_of(run), run.task_id)
    await store.settled(claimed.task, success(Complete(result=b"")) if well else BROKEN)


async def ran(timetable: ScheduleStore, schedule: Schedule) -> ScheduleRun:
    """Let the next minute come, and return the run of it."""
    assert await timetable.after(MINUTE) == ["started"]
    return (await timetable.last(schedule))[-1]


async def test_a_schedule_runs_at_its_next_instant_and_not_before(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    assert schedule.upcoming is not None
    assert await timetable.run_due() == []

    assert await timetable.after(schedule.upcoming.due_at - timetable.clock.now()) == ["started"]

    [run] = await timetable.last(schedule)
    assert run.state is ScheduleRunState.RUNNING
    assert run.instant == schedule.upcoming.instant
    assert (
        run.process_id == f"{schedule.key.schedule_id}/{timetable.clock.now():%Y-%m-%dT%H:%M:%S}Z"
    )
    assert await timetable.count("processes") == 1
    again = await timetable.schedules.get(schedule.key)
    assert again.started_count == 1
    assert again.upcoming is not None
    assert again.upcoming.instant == schedule.upcoming.instant + MINUTE
    assert await timetable.run_due() == []


async def test_what_is_started_gets_all_that_the_schedule_says(timetable: ScheduleStore) -> None:
    target = StartTarget(
        template="made-{instant}", args=b"args", caller_context={"a": "b"}, metadata={"n": 1}
    )
    schedule = await timetable.create(a_spec(target))

    run = await ran(timetable, schedule)

    [claimed] = await timetable.store.claim(process_of(run), run.task_id)
    assert run.process_id == f"made-{timetable.clock.now():%Y-%m-%dT%H:%M:%S}Z"
    assert claimed.task.task_type is TaskType.INIT
    assert (claimed.task.args, claimed.task.caller_context) == (b"args", {"a": "b"})
    assert claimed.task.process.metadata == {"n": 1}


async def test_what_is_started_is_told_as_due(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()

    run = await ran(timetable, schedule)

    assert timetable.store.reported[-1].due == ((process_of(run), run.task_id),)


async def test_two_replicas_that_come_together_run_once(
    timetable: ScheduleStore, rival: ScheduleStore
) -> None:
    for _ in range(30):
        await timetable.create()
    timetable.clock.advance(MINUTE)
    await asyncio.gather(*(each.run_due() for each in (timetable, rival) * 4))

    assert len(timetable.ran) + len(rival.ran) == 30
    assert await timetable.count("processes") == await timetable.count("schedule_runs") == 30


async def test_a_replica_that_was_frozen_with_a_claim_changes_nothing(
    timetable: ScheduleStore, rival: ScheduleStore, observer: Observer
) -> None:
    """Not even where neither what was started nor the record of it is there any more."""
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE)
    [claimed] = await timetable.runs.claim_due(limit=10, lease=LEASE)
    timetable.clock.advance(2 * LEASE)
    assert await rival.run_due() == ["started"]
    [run] = await rival.last(schedule)
    await rival.store.remove(process_of(run))
    observer.execute("DELETE FROM progressor.schedule_runs")

    item = timetable.scan.planned(claimed)
    assert item is not None
    [done] = await timetable.schedule_runs.run([item])
    assert done.verdict == "changed"
    assert await timetable.count("processes") == await timetable.count("schedule_runs") == 0


async def test_a_claim_keeps_others_away_until_it_has_run_out(
    timetable: ScheduleStore, rival: ScheduleStore
) -> None:
    await timetable.create()
    timetable.clock.advance(MINUTE)
    assert len(await timetable.runs.claim_due(limit=10, lease=LEASE)) == 1

    assert await rival.run_due() == []
    assert await rival.runs.seconds_until_due() is None
    timetable.clock.advance(LEASE)
    assert await rival.runs.seconds_until_due() == 0
    assert await rival.run_due() == ["started"]


async def test_an_instant_that_was_run_before_takes_the_schedule_on_and_starts_nothing(
    timetable: ScheduleStore, observer: Observer
) -> None:
    schedule = await timetable.create()
    run = await ran(timetable, schedule)
    observer.execute(
        "UPDATE progressor.schedules s SET next_instant = f.instant, next_at = f.due_at"
        " FROM progressor.schedule_runs f WHERE f.schedule_id = s.schedule_id"
    )

    assert await timetable.run_due() == ["known"]
    assert await timetable.count("processes") == 1
    again = await timetable.schedules.get(schedule.key)
    assert again.upcoming is not None
    assert again.upcoming.instant == run.instant + MINUTE


async def test_jitter_puts_a_run_off_but_not_its_instant(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(a_spec(jitter=MINUTE))
    assert schedule.upcoming is not None
    assert await timetable.after(schedule.upcoming.instant - timetable.clock.now()) == []
    assert await timetable.runs.seconds_until_due() == pytest.approx(
        (schedule.upcoming.due_at - timetable.clock.now()).total_seconds()
    )

    assert await timetable.after(schedule.upcoming.due_at - timetable.clock.now()) == ["started"]
    [run] = await timetable.last(schedule)
    assert (run.instant, run.due_at) == (schedule.upcoming.instant, timetable.clock.now())
    timetable.clock.advance(schedule.upcoming.instant + MINUTE - timetable.clock.now())


async def test_a_downtime_is_made_up_for_within_the_window_and_counted_beyond(
    timetable: ScheduleStore,
) -> None:
    spec = a_spec(overlap_policy=OverlapPolicy.ALLOW, catch_up_window=3 * MINUTE)
    schedule = await timetable.create(spec)

    assert await timetable.after(10 * MINUTE) == ["missed", *["started"] * 4]

    missed, *_, last = await timetable.last(schedule)
    assert missed.state is ScheduleRunState.MISSED
    assert (missed.missed_count, missed.missed_until) == (6, missed.instant + 5 * MINUTE)
    assert last.instant == timetable.clock.now()
    again = await timetable.schedules.get(schedule.key)
    assert (again.started_count, again.missed_count) == (4, 6)


async def test_a_schedule_that_has_ended_is_due_no_more(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(a_spec(end_at=timetable.clock.now() + MINUTE))
    await ran(timetable, schedule)

    assert await timetable.after(MINUTE) == []
    assert (await timetable.schedules.get(schedule.key)).upcoming is None


@pytest.mark.parametrize(
    ("policy", "verdict", "process_count"),
    [
        (OverlapPolicy.SKIP, "skipped", 1),
        (OverlapPolicy.QUEUE_ONE, "queued", 1),
        (OverlapPolicy.ALLOW, "started", 2),
        (OverlapPolicy.CANCEL_PREVIOUS, "started", 2),
    ],
)
async def test_a_run_meets_one_that_is_at_work(
    timetable: ScheduleStore, policy: OverlapPolicy, verdict: str, process_count: int
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=policy))
    await ran(timetable, schedule)
    assert await timetable.after(MINUTE) == [verdict]

    assert await timetable.count("processes") == process_count
    first = (await timetable.last(schedule))[0]
    is_cancelled = policy is OverlapPolicy.CANCEL_PREVIOUS
    assert (first.state is ScheduleRunState.CANCELLED) is is_cancelled


@pytest.mark.parametrize("policy", [OverlapPolicy.SKIP, OverlapPolicy.QUEUE_ONE])
@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("done", ScheduleRunState.DONE),
        ("broken", ScheduleRunState.FAILED),
        ("gone", ScheduleRunState.GONE),
    ],
)
async def test_a_run_starts_once_the_one_before_has_ended(
    timetable: ScheduleStore, policy: OverlapPolicy, how: str, state: ScheduleRunState
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=policy))
    run = await ran(timetable, schedule)
    if how == "gone":
        await timetable.store.remove(process_of(run))
    else:
        await end(timetable.store, run, well=how == "done")
    [seen] = await timetable.last(schedule)
    assert (seen.state, seen.ended_at) == (state, None)

    await ran(timetable, schedule)

    first, second = await timetable.last(schedule)
    assert (first.state, first.ended_at) == (state, timetable.clock.now())
    assert second.state is ScheduleRunState.RUNNING


async def test_one_run_waits_and_starts_when_the_one_before_has_ended(
    timetable: ScheduleStore,
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.QUEUE_ONE))
    run = await ran(timetable, schedule)
    assert await timetable.after(2 * MINUTE) == ["queued", "skipped"]
    assert await timetable.look_at_queue() == []

    await end(timetable.store, run)
    assert await timetable.look_at_queue() == ["started"]

    assert await timetable.states(schedule) == ["done", "running", "skipped"]
    second = (await timetable.last(schedule))[1]
    assert second.process_id == f"{schedule.key.schedule_id}/{second.instant:%Y-%m-%dT%H:%M:%S}Z"
    assert second.started_at == timetable.clock.now()
    assert await timetable.look_at_queue() == []


async def test_two_replicas_start_what_was_queued_once(
    timetable: ScheduleStore, rival: ScheduleStore
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=OverlapPolicy.QUEUE_ONE))
    run = await ran(timetable, schedule)
    await timetable.after(MINUTE)
    await end(timetable.store, run)

    await asyncio.gather(*(each.scan.scan() for each in (timetable, rival) * 4))

    assert await timetable.count("processes") == 2
    assert (await timetable.schedules.get(schedule.key)).started_count == 2


async def test_a_queue_of_many_schedules_is_looked_at_in_turns(
    timetable: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("progressor.runtime.schedules.QUEUED_MAX", 2)
    made = [
        await timetable.create(a_spec(overlap_policy=OverlapPolicy.QUEUE_ONE)) for _ in range(5)
    ]
    await timetable.after(2 * MINUTE)
    for schedule in made:
        first = (await timetable.last(schedule))[0]
        await timetable.store.remove(process_of(first))

    started = [len(await timetable.look_at_queue()) for _ in range(4)]

    assert started == [2, 2, 1, 0]


async def test_what_somebody_keeps_locked_holds_up_no_other(
    timetable: ScheduleStore, database: str
) -> None:
    kept, *_ = [await timetable.create() for _ in range(3)]
    timetable.clock.advance(MINUTE)
    with psycopg.connect(database) as holder:
        holder.execute(
            "SELECT FROM progressor.schedules WHERE schedule_id = %s FOR UPDATE",
            (kept.key.schedule_id,),
        )
        assert await timetable.run_due() == ["started"] * 2

    assert await timetable.run_due() == ["started"]
    assert await timetable.count("processes") == 3


async def test_an_interval_runs_as_often_as_it_says(timetable: ScheduleStore) -> None:
    every = IntervalTimes(dt.timedelta(seconds=20), timetable.clock.now())
    spec = a_spec(times=every, overlap_policy=OverlapPolicy.ALLOW)
    schedule = await timetable.create(spec)

    assert await timetable.after(MINUTE) == ["started"] * 3
    instants = [each.instant for each in await timetable.last(schedule)]
    assert [timetable.clock.now() - each for each in instants] == [
        dt.timedelta(seconds=n) for n in (40, 20, 0)
    ]


async def test_lateness_and_verdicts_are_counted(timetable: ScheduleStore) -> None:
    await timetable.create()
    await timetable.after(2 * MINUTE + dt.timedelta(seconds=3))

    counted = timetable.metrics.schedule_runs
    assert [counted.value(("orders", each)) for each in ("started", "skipped")] == [1, 1]
