"""Schedules as they are made, changed, listed and deleted; backfills, and what retention leaves."""

import asyncio
import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors, job_errors
from progressor.domain.processes.process import process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    CronTimes,
    IntervalTimes,
    OverlapPolicy,
    Schedule,
    ScheduleRunCause,
    ScheduleRunState,
    StartTarget,
    Upcoming,
    schedule_key,
)
from progressor.storage.schedules.runs import DeletedTo
from tests.support.storage.schedules import (
    MINUTE,
    ScheduleStore,
    a_spec,
    fresh_schedule_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

Observer = psycopg.Connection[Any]
HOUR = dt.timedelta(hours=1)
HOURLY = CronTimes("0 * * * *", "UTC")
ALLOW = OverlapPolicy.ALLOW


async def test_a_schedule_is_kept_as_it_was_made(timetable: ScheduleStore) -> None:
    spec = a_spec(
        StartTarget(args=b"x", caller_context={"a": "b"}, metadata={"n": 1}),
        CronTimes("*/5 * * * *", "Europe/Berlin"),
        jitter=dt.timedelta(seconds=3),
        start_at=timetable.clock.now(),
        end_at=timetable.clock.now() + HOUR,
        overlap_policy=OverlapPolicy.QUEUE_ONE,
        catch_up_window=dt.timedelta(days=366),
    )
    key = fresh_schedule_key()

    made = await timetable.schedules.create(key, spec, paused=False, note="by hand")

    assert made == await timetable.schedules.get(key)
    assert (made.spec, made.note, made.revision) == (spec, "by hand", 1)
    assert (made.created_at, made.updated_at) == (timetable.clock.now(), timetable.clock.now())


async def test_an_id_is_taken_once(timetable: ScheduleStore) -> None:
    made = await timetable.create()

    with pytest.raises(job_errors.ScheduleAlreadyExistsError):
        await timetable.schedules.create(made.key, a_spec(), paused=False, note="")


async def test_a_schedule_needs_a_namespace(timetable: ScheduleStore) -> None:
    key = schedule_key("nowhere", "nightly")

    with pytest.raises(errors.NamespaceNotFoundError):
        await timetable.schedules.create(key, a_spec(), paused=False, note="")


async def test_a_list_goes_by_ids_and_leaves_args_out(timetable: ScheduleStore) -> None:
    spec = a_spec(StartTarget(args=b"large"))
    keys = [schedule_key("orders", name) for name in ("b", "a", "C")]
    for key in keys:
        await timetable.schedules.create(key, spec, paused=True, note="")

    first = await timetable.schedules.list("orders", after="", limit=2)
    rest = await timetable.schedules.list("orders", after="a", limit=2)

    assert [each.key.schedule_id for each in (*first, *rest)] == ["C", "a", "b"]
    assert [each.spec.target for each in first] == [StartTarget()] * 2


async def test_an_update_that_leaves_the_times_leaves_what_is_due(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE)
    spec = a_spec(StartTarget(args=b"new"), overlap_policy=ALLOW)

    updated = await timetable.schedules.update(schedule.key, spec, expected_revision=1)

    assert (updated.spec, updated.revision) == (spec, 2)
    assert updated.upcoming == schedule.upcoming
    assert await timetable.run_due() == ["started"]


async def test_an_update_of_the_times_counts_from_now(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE)
    times = IntervalTimes(dt.timedelta(seconds=10), timetable.clock.now())

    updated = await timetable.schedules.update(
        schedule.key, a_spec(times=times), expected_revision=0
    )

    at = timetable.clock.now() + dt.timedelta(seconds=10)
    assert updated.upcoming == Upcoming(at, at)
    assert await timetable.run_due() == []


async def test_an_update_makes_what_was_claimed_before_void(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE)
    [claimed] = await timetable.runs.claim_due(limit=10, lease=MINUTE)
    await timetable.schedules.update(schedule.key, a_spec(times=HOURLY), expected_revision=0)

    item = timetable.scan.planned(claimed)
    assert item is not None
    [done] = await timetable.schedule_runs.run([item])
    assert done.verdict == "changed"


@pytest.mark.parametrize("change", ["update", "pause", "resume", "delete"])
async def test_a_change_expects_a_schedule_and_its_revision(
    timetable: ScheduleStore, change: str
) -> None:
    schedules = timetable.schedules
    made = await timetable.create()

    async def apply(schedule: Schedule, revision: int) -> None:
        key = schedule.key
        match change:
            case "update":
                await schedules.update(key, a_spec(), expected_revision=revision)
            case "pause":
                await schedules.pause(key, note="", expected_revision=revision)
            case "resume":
                await schedules.resume(key, note="", expected_revision=revision)
            case _:
                await schedules.delete(key, expected_revision=revision)

    with pytest.raises(job_errors.ScheduleChangedError) as caught:
        await apply(made, 2)
    assert (caught.value.expected, caught.value.actual) == (2, 1)
    await schedules.delete(made.key, expected_revision=1)
    with pytest.raises(job_errors.ScheduleNotFoundError):
        await apply(made, 0)


async def test_a_pause_lasts_until_it_is_resumed_and_is_not_made_up_for(
    timetable: ScheduleStore,
) -> None:
    schedule = await timetable.create()
    paused = await timetable.schedules.pause(schedule.key, note="vacation", expected_revision=0)
    assert (paused.paused, paused.note, paused.upcoming, paused.revision) == (
        True, "vacation", None, 2,
    )  # fmt: skip
    assert await timetable.after(HOUR) == []

    resumed = await timetable.schedules.resume(schedule.key, note="back", expected_revision=2)

    assert (resumed.paused, resumed.note, resumed.revision) == (False, "back", 3)
    assert resumed.upcoming is not None
    assert timetable.clock.now() < resumed.upcoming.instant <= timetable.clock.now() + MINUTE
    assert await timetable.run_due() == []
    assert await timetable.after(MINUTE) == ["started"]


async def test_to_resume_what_is_not_paused_changes_the_note_alone(
    timetable: ScheduleStore,
) -> None:
    schedule = await timetable.create()
    timetable.clock.advance(MINUTE)

    resumed = await timetable.schedules.resume(schedule.key, note="so", expected_revision=0)

    assert (resumed.note, resumed.upcoming) == ("so", schedule.upcoming)


async def test_what_is_paused_stays_so_when_it_is_updated(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(paused=True)
    updated = await timetable.schedules.update(
        schedule.key, a_spec(times=HOURLY), expected_revision=0
    )

    assert (updated.paused, updated.upcoming) == (True, None)
    assert await timetable.after(HOUR) == []


async def test_changes_at_once_are_all_made(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()

    await asyncio.gather(
        *(
            timetable.schedules.pause(schedule.key, note=str(n), expected_revision=0)
            for n in range(4)
        )
    )

    assert (await timetable.schedules.get(schedule.key)).revision == 5


async def test_a_deleted_schedule_leaves_what_it_started(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    await timetable.after(MINUTE)

    await timetable.schedules.delete(schedule.key, expected_revision=0)

    assert await timetable.count("schedule_runs") == 0
    assert await timetable.count("processes") == 1


async def test_a_namespace_takes_its_schedules_with_it(
    timetable: ScheduleStore, observer: Observer
) -> None:
    observer.execute(
        "INSERT INTO progressor.namespaces SELECT 'brief', 1, n.config, now(), now()"
        " FROM progressor.namespaces n WHERE n.name = 'orders'"
    )
    key = fresh_schedule_key("brief")
    await timetable.schedules.create(key, a_spec(), paused=False, note="")

    await timetable.store.namespaces.delete("brief")

    with pytest.raises(job_errors.ScheduleNotFoundError):
        await timetable.schedules.get(key)


async def backfilled(
    timetable: ScheduleStore, schedule: Schedule, instants: list[dt.datetime], policy: OverlapPolicy
) -> int:
    upcoming = [Upcoming(each, each) for each in instants]
    return await timetable.schedules.backfill(schedule, upcoming, policy)


async def test_a_backfill_runs_what_started_nothing_before(timetable: ScheduleStore) -> None:
    spec = a_spec(overlap_policy=ALLOW, catch_up_window=MINUTE)
    schedule = await timetable.create(spec)
    assert await timetable.after(3 * MINUTE) == ["missed", "started", "started"]
    last = (await timetable.last(schedule))[-1].instant
    instants = [last - n * MINUTE for n in range(4)]

    assert await backfilled(timetable, schedule, instants, ALLOW) == 2
    started = [await timetable.look_at_queue() for _ in range(3)]

    assert started == [["started"], ["started"], []]
    runs = await timetable.last(schedule)
    assert [each.cause for each in runs] == [
        ScheduleRunCause.BACKFILL, ScheduleRunCause.BACKFILL,
        ScheduleRunCause.TIME, ScheduleRunCause.TIME,
    ]  # fmt: skip
    assert {each.state for each in runs} == {ScheduleRunState.RUNNING}
    assert await backfilled(timetable, schedule, instants, ALLOW) == 0


async def test_a_backfill_in_a_queue_goes_one_after_the_other(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(paused=True)
    instants = [timetable.clock.now() - n * MINUTE for n in range(1, 4)]
    assert await backfilled(timetable, schedule, instants, OverlapPolicy.QUEUE_ONE) == 3

    order = []
    for _ in instants:
        assert await timetable.look_at_queue() == ["started"]
        assert await timetable.look_at_queue() == []
        running = [
            it for it in await timetable.last(schedule) if it.state is ScheduleRunState.RUNNING
        ]
        assert len(running) == 1
        order.append(running[0].instant)
        await timetable.store.remove(process_key("orders", running[0].process_id or ""))

    assert order == instants[::-1]


async def test_a_backfill_that_skips_starts_the_first_alone(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(paused=True)
    instants = [timetable.clock.now() - n * MINUTE for n in range(1, 4)]
    await backfilled(timetable, schedule, instants, OverlapPolicy.SKIP)

    said = [await timetable.look_at_queue() for _ in range(3)]

    assert said == [["started"], ["skipped"], ["skipped"]]


async def test_a_backfill_finds_the_schedule_as_it_was_read(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    await timetable.schedules.pause(schedule.key, note="", expected_revision=0)
    with pytest.raises(job_errors.ScheduleChangedError):
        await backfilled(timetable, schedule, [timetable.clock.now()], ALLOW)

    await timetable.schedules.delete(schedule.key, expected_revision=0)
    with pytest.raises(job_errors.ScheduleNotFoundError):
        await backfilled(timetable, schedule, [timetable.clock.now()], ALLOW)


async def test_what_was_refused_may_be_run_again(timetable: ScheduleStore) -> None:
    key = process_key("orders", "comes late")
    target = CallTarget(task_type=TaskType.NOTIFY, process_id=key.process_id)
    schedule = await timetable.create(a_spec(target))
    assert await timetable.after(MINUTE) == ["refused"]
    [run] = await timetable.last(schedule)
    await timetable.store.started(key)

    assert await backfilled(timetable, schedule, [run.instant], ALLOW) == 1
    assert await timetable.look_at_queue() == ["started"]
    [run] = await timetable.last(schedule)
    assert (run.state, run.error) == (ScheduleRunState.RUNNING, None)


async def deleted(
    timetable: ScheduleStore, schedule: Schedule, kept: int, age: dt.timedelta, limit: int = 1000
) -> int:
    """Delete old runs of the schedule's slot, a window after the other; return how many."""
    count, at = 0, DeletedTo()
    while True:
        found = await timetable.runs.delete_old(
            schedule.key.slot, at, kept=kept, age=age, limit=limit
        )
        count += found.count
        if found.next is None:
            return count
        at = found.next


async def ended(timetable: ScheduleStore, schedule: Schedule) -> None:
    """Remove all that was started."""
    for run in await timetable.last(schedule):
        if run.process_id is not None:
            await timetable.store.remove(process_key("orders", run.process_id))


@pytest.mark.parametrize("limit", [1000, 10, 3, 1])
async def test_retention_keeps_the_last_runs_and_what_is_at_work(
    timetable: ScheduleStore, limit: int
) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=ALLOW))
    await timetable.after(5 * MINUTE)
    await ended(timetable, schedule)
    await timetable.after(5 * MINUTE)

    assert await deleted(timetable, schedule, 7, HOUR, limit) == 3
    assert await timetable.states(schedule) == ["gone"] * 2 + ["running"] * 5
    assert await deleted(timetable, schedule, 1, HOUR, limit) == 2
    assert await timetable.states(schedule) == ["running"] * 5


async def test_retention_deletes_what_is_too_old(timetable: ScheduleStore) -> None:
    schedule = await timetable.create()
    await timetable.after(MINUTE)
    await ended(timetable, schedule)
    await timetable.schedules.pause(schedule.key, note="", expected_revision=0)
    timetable.clock.advance(HOUR)

    assert await deleted(timetable, schedule, 100, 2 * HOUR) == 0
    assert await deleted(timetable, schedule, 100, MINUTE) == 1


async def test_what_retention_has_deleted_is_not_run_again(timetable: ScheduleStore) -> None:
    schedule = await timetable.create(a_spec(overlap_policy=ALLOW))
    await timetable.after(3 * MINUTE)
    instants = [each.instant for each in await timetable.last(schedule)]
    await ended(timetable, schedule)
    assert await deleted(timetable, schedule, 1, HOUR) == 2

    with pytest.raises(errors.InvalidRequestError, match="is gone: whether they happened"):
        await backfilled(timetable, schedule, instants, ALLOW)
    with pytest.raises(errors.InvalidRequestError):
        await backfilled(timetable, schedule, instants[:1], ALLOW)
    before = instants[0] - MINUTE
    assert await backfilled(timetable, schedule, [before, instants[-1]], ALLOW) == 1
    assert await timetable.count("processes") == 0


async def test_nothing_is_skipped_for_runs_that_have_all_ended(
    timetable: ScheduleStore, observer: Observer
) -> None:
    """A run looks closely at a hundred of them; more may have ended since the last look."""
    schedule = await timetable.create(a_spec(overlap_policy=ALLOW))
    await timetable.after(102 * MINUTE)
    observer.execute("DELETE FROM progressor.processes")
    skip = a_spec(overlap_policy=OverlapPolicy.SKIP)
    await timetable.schedules.update(schedule.key, skip, expected_revision=0)

    assert await timetable.after(MINUTE) == ["started"]


async def test_the_scan_forgets_some_slots_a_round(
    timetable: ScheduleStore, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("progressor.runtime.schedules.KEPT", 0)
    await timetable.create()
    await timetable.after(MINUTE)
    observer.execute("DELETE FROM progressor.processes")

    for _ in range(32):
        await timetable.scan.forget()

    assert await timetable.count("schedule_runs") == 0
