"""Schedules: their instants, jitter, lateness, and overlap."""

import dataclasses
import datetime as dt
import itertools
import random
from typing import Any

import pytest

from progressor.domain.schedules.cron import CronClock, CronError
from progressor.domain.schedules.schedule import (
    EPOCH,
    MISSED_PER_PASS_MAX,
    Calendar,
    CronTimes,
    Decision,
    IntervalTimes,
    Missed,
    OverlapPolicy,
    ScheduleRunCause,
    Timing,
    Upcoming,
    decide,
    instant_text,
    run_key,
    schedule_key,
    target_id,
)

KEY = schedule_key("clocks", "nightly")
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SECOND = dt.timedelta(seconds=1)
MINUTELY = CronTimes("* * * * *", "UTC")


def calendar(times: CronTimes | IntervalTimes = MINUTELY, **timing: Any) -> Calendar:
    return Calendar(KEY, dataclasses.replace(Timing(times=times), **timing))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (NOON, NOON + 7 * SECOND),
        (NOON - SECOND, NOON),
        (NOON + 6 * SECOND, NOON + 7 * SECOND),
        (NOON + 7 * SECOND, NOON + 14 * SECOND),
        (NOON - 8 * SECOND, NOON - 7 * SECOND),
    ],
)
def test_an_interval_counts_from_its_anchor_both_ways(
    after: dt.datetime, expected: dt.datetime
) -> None:
    every = calendar(IntervalTimes(7 * SECOND, NOON))

    assert every.upcoming(after) == Upcoming(expected, expected)


def test_nothing_runs_before_start_or_after_end() -> None:
    bounded = calendar(start_at=NOON, end_at=NOON + 2 * MINUTE)

    found = [each.instant for each in bounded.following(EPOCH)]

    assert found == [NOON, NOON + MINUTE, NOON + 2 * MINUTE]
    assert bounded.upcoming(NOON + 2 * MINUTE) is None


def test_a_backfill_heeds_neither_start_nor_end_and_has_a_limit() -> None:
    ended = calendar(start_at=NOON, end_at=NOON)

    found = ended.between(NOON - 2 * MINUTE, NOON + 2 * MINUTE, 10)

    assert [(each.instant - NOON) // MINUTE for each in found] == [-2, -1, 0, 1]
    assert len(ended.between(NOON, NOON + dt.timedelta(days=1), 7)) == 7


def test_a_hundred_next_instants_of_a_leap_day_that_is_a_sunday_are_soon_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next one is 28 years later; a hundred were 2,800 years, day by day, twice with jitter."""
    looks = 0
    match = CronClock._match_after

    def counted(clock: CronClock, shown: dt.datetime) -> dt.datetime | None:
        nonlocal looks
        looks += 1
        return match(clock, shown)

    monkeypatch.setattr(CronClock, "_match_after", counted)
    rare = calendar(CronTimes("0 0 29 2 */7", "UTC"), jitter=SECOND)
    first = rare.upcoming(NOON)
    assert first is not None

    assert [each.instant.year for each in rare.next(first, 100)] == [2032]
    assert looks <= 4


def test_the_horizon_is_no_later_than_the_last_representable_instant() -> None:
    last = dt.datetime(9999, 12, 31, 23, 58, tzinfo=dt.UTC)

    assert len(calendar(jitter=SECOND).next(Upcoming(last, last), 3)) == 2


def test_an_expression_of_another_release_is_refused() -> None:
    with pytest.raises(CronError):
        calendar(CronTimes("* * * * *", "Moon/Tranquility"))


def test_jitter_is_the_same_for_all_and_differs_by_schedule_and_instant() -> None:
    timing = Timing(times=MINUTELY, jitter=30 * SECOND)
    mine = [each.due_at - each.instant for each in _some(Calendar(KEY, timing))]
    again = [each.due_at - each.instant for each in _some(Calendar(KEY, timing))]
    other = schedule_key("clocks", "hourly")
    theirs = [each.due_at - each.instant for each in _some(Calendar(other, timing))]

    assert mine == again
    assert mine != theirs
    assert len(set(mine)) > 90
    assert dt.timedelta() <= min(mine) < 3 * SECOND
    assert 27 * SECOND < max(mine) < 30 * SECOND


def test_jitter_never_reaches_beyond_the_next_instant() -> None:
    found = _some(calendar(jitter=dt.timedelta(days=1)))

    assert all(this.due_at < then.instant for this, then in itertools.pairwise(found))


def _some(each: Calendar) -> list[Upcoming]:
    return list(itertools.islice(each.following(NOON), 100))


def test_a_due_instant_runs_and_the_next_one_follows() -> None:
    due = Upcoming(NOON, NOON)

    plan = calendar().plan(due, NOON + 5 * MINUTE)

    assert plan.what is due
    assert plan.then == Upcoming(NOON + MINUTE, NOON + MINUTE)


def test_what_is_older_than_the_window_is_missed_up_to_what_is_not() -> None:
    late = calendar(catch_up_window=3 * MINUTE)

    plan = late.plan(Upcoming(NOON, NOON), NOON + 10 * MINUTE)

    assert plan.what == Missed(Upcoming(NOON, NOON), NOON + 6 * MINUTE, 7)
    assert plan.then == Upcoming(NOON + 7 * MINUTE, NOON + 7 * MINUTE)


def test_a_long_downtime_is_counted_in_portions() -> None:
    late = calendar(IntervalTimes(SECOND), catch_up_window=SECOND)

    plan = late.plan(Upcoming(NOON, NOON), NOON + dt.timedelta(days=1))

    assert isinstance(plan.what, Missed)
    assert plan.what.count == MISSED_PER_PASS_MAX
    assert plan.then is not None
    assert plan.then.instant == NOON + MISSED_PER_PASS_MAX * SECOND


SKIP, QUEUE, ALLOW, CANCEL = OverlapPolicy
TIME, TRIGGER, BACKFILL = ScheduleRunCause


@pytest.mark.parametrize(
    ("policy", "cause", "is_at_work", "has_queued", "expected"),
    [
        (SKIP, TIME, False, False, Decision.START),
        (SKIP, TIME, True, False, Decision.SKIP),
        (SKIP, BACKFILL, True, True, Decision.SKIP),
        (QUEUE, TIME, False, False, Decision.START),
        (QUEUE, TIME, True, False, Decision.QUEUE),
        (QUEUE, TIME, True, True, Decision.SKIP),
        (QUEUE, TRIGGER, True, True, Decision.SKIP),
        (QUEUE, TIME, False, True, Decision.QUEUE),
        (QUEUE, BACKFILL, True, True, Decision.QUEUE),
        (ALLOW, TIME, True, True, Decision.START),
        (CANCEL, TIME, True, True, Decision.START),
    ],
)
def test_what_a_run_meets(
    policy: OverlapPolicy,
    cause: ScheduleRunCause,
    is_at_work: bool,
    has_queued: bool,
    expected: Decision,
) -> None:
    found = decide(policy, cause, is_at_work=is_at_work, has_queued=has_queued)

    assert found is expected


def test_ids_and_keys_are_made_of_schedule_and_instant() -> None:
    at = NOON + dt.timedelta(microseconds=5)

    assert instant_text(NOON.astimezone(dt.timezone(dt.timedelta(hours=2)))) == (
        "2026-01-01T12:00:00Z"
    )
    assert instant_text(at) == "2026-01-01T12:00:00.000005Z"
    assert run_key("nightly", at) == "schedule/nightly/2026-01-01T12:00:00.000005Z"
    assert target_id("{schedule_id}/{instant}", "a{instant}", NOON) == (
        "a{instant}/2026-01-01T12:00:00Z"
    )
    assert target_id("{instant}-{other}", "a", NOON) == "2026-01-01T12:00:00Z-{other}"


def test_times_are_the_same_whatever_is_done_at_them() -> None:
    timing = Timing(times=MINUTELY, jitter=SECOND)

    assert timing.has_instants_of(dataclasses.replace(timing, overlap_policy=ALLOW))
    assert not timing.has_instants_of(dataclasses.replace(timing, jitter=2 * SECOND))
    assert not timing.has_instants_of(dataclasses.replace(timing, end_at=NOON))


def test_instants_of_a_schedule_go_on_without_gaps_and_repeats_wherever_one_asks() -> None:
    chance = random.Random(7)
    each = calendar(CronTimes("*/7 * * * *", "Europe/Berlin"))
    start = dt.datetime(2026, 3, 28, 22, tzinfo=dt.UTC)
    found = [it.instant for it in itertools.islice(each.following(start), 100)]

    for _ in range(100):
        at = start + dt.timedelta(seconds=chance.uniform(0, 3600 * 8))
        upcoming = each.upcoming(at)
        assert upcoming is not None
        assert upcoming.instant == min(it for it in found if it > at)
