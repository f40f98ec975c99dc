"""Claims: timers at their time, the backlog as workers become free, and the safety net."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from progressor import errors
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.runtime.claims import GATHER_LEADS, LEAD_SECONDS_MAX, PAGES_MAX, TOGETHER_SECONDS
from tests.support.builders import (
    make_due,
    make_namespace,
    make_task,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.harness import (
    ONE_SLOT,
    Harness,
)
from tests.support.runtime.virtual_time import settled

NO_LEAD = pytest.approx(0, abs=1e-5)


async def test_a_timer_is_claimed_the_moment_it_is_due(harness: Harness) -> None:
    harness.make_due(1)
    harness.remember(1, ahead=3)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(2.99)
        before = list(harness.begun_ids)
        await asyncio.sleep(0.02)

        assert (before, harness.begun_ids) == ([], [1])

    assert harness.observers.counts["timers_claimed"] == 1


async def test_a_timer_is_leased_before_its_time_if_claims_take_long_and_starts_at_it(
    harness: Harness,
) -> None:
    harness.claims.seconds = 0.008
    harness.make_due(1, 2)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1.5)
        await asyncio.sleep(0.499)
        leased, before = harness.slots.busy_total, list(harness.begun_ids)
        await asyncio.sleep(0.002)

        assert (leased, before, harness.begun_ids) == (2, [1], [1, 2])

    # Nothing was known about the time that the first claim would take.
    assert harness.claims.aheads == [NO_LEAD, pytest.approx(0.008, abs=1e-5)]


@pytest.mark.parametrize("took", [0.008, 0.1])
async def test_a_timer_leased_ahead_of_its_time_tells_how_late_it_starts(
    harness: Harness, took: float
) -> None:
    tasks: list[RunningTask] = []

    async def keep(task: RunningTask) -> None:
        tasks.append(task)

    harness.slots._run_step = keep
    harness.make_due(1, 2)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    due_at = [claimed.task.started_at for claimed in harness.claims.due.values()][1]
    async with harness.running(harness.timers.run):
        harness.claims.seconds = 0.008
        await asyncio.sleep(1.5)
        harness.claims.seconds = took
        await asyncio.sleep(1)

    # Its claim is sent 8 ms ahead.
    late = max(0.0, took - 0.008)
    assert (tasks[1].started_at - due_at).total_seconds() == pytest.approx(late, abs=0.0015)


async def test_no_timer_is_claimed_earlier_than_a_slow_claim_may_make_it(harness: Harness) -> None:
    harness.claims.seconds = 0.5
    harness.make_due(1, 2, 3)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    harness.remember(3, ahead=2 + (GATHER_LEADS - 1) * LEAD_SECONDS_MAX)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(3)

        assert harness.begun_ids == [1, 2, 3]

    assert harness.claims.aheads == [
        NO_LEAD,
        pytest.approx(GATHER_LEADS * LEAD_SECONDS_MAX, abs=0.001),
    ]


async def test_timers_that_are_due_at_almost_the_same_time_start_together(
    harness: Harness,
) -> None:
    harness.claims.seconds = 0.008
    harness.make_due(1, 2, 3, 4)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    harness.remember(3, ahead=2 + 0.9 * TOGETHER_SECONDS)
    harness.remember(4, ahead=2 + 1.1 * TOGETHER_SECONDS)
    begun: list[tuple[int, ...]] = []

    async def look_on() -> None:
        while len(harness.begun_ids) < 4:
            await asyncio.sleep(TOGETHER_SECONDS / 100)
            if not begun or begun[-1] != tuple(harness.begun_ids):
                begun.append(tuple(harness.begun_ids))

    async with harness.running(harness.timers.run, look_on):
        await asyncio.sleep(2.1)

    assert begun == [(), (1,), (1, 2), (1, 2, 3, 4)]


async def test_a_timer_that_finds_no_place_ahead_of_its_time_joins_the_backlog_when_it_is_due(
    harness: Harness,
) -> None:
    harness.claims.seconds = 0.008
    harness.make_due(1, 2)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1.5)
        harness.slots.mark_backlog("orders")
        await asyncio.sleep(0.499)
        before = harness.slots.backlogs()
        await asyncio.sleep(0.002)

        assert (before, harness.slots.backlogs()) == ({"orders": 1}, {"orders": 2})


async def test_an_outage_puts_off_timers_claimed_ahead_of_their_time(harness: Harness) -> None:
    harness.claims.seconds = 0.008
    harness.make_due(1, 2)
    harness.remember(1, ahead=1)
    harness.remember(2, ahead=2)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1.5)
        harness.claims.outage.remaining = 1
        await asyncio.sleep(1)

        assert harness.begun_ids == [1, 2]


async def test_a_timer_that_is_set_while_all_wait_is_not_overslept(harness: Harness) -> None:
    harness.make_due(1, 2)
    harness.remember(1, ahead=4)
    async with harness.running(harness.timers.run):
        harness.remember(2, ahead=1)
        await asyncio.sleep(1.01)

        assert harness.begun_ids == [2]


async def test_a_timer_does_not_overtake_the_backlog(harness: Harness) -> None:
    harness.slots.reserve(harness.namespaces.known()[0])
    harness.slots.mark_backlog("orders")
    harness.make_due(1)
    harness.remember(1)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1)

        assert harness.begun_ids == []
        assert harness.slots.backlogs() == {"orders": 2}


async def test_the_timer_of_a_namespace_that_is_gone_is_passed_over(harness: Harness) -> None:
    harness.make_due(1)
    harness.remember(1)
    harness.remember(2, namespace="void")
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1)

        assert harness.begun_ids == [1]


async def test_an_outage_puts_timers_off_and_loses_none(harness: Harness) -> None:
    harness.make_due(1, 2)
    harness.remember(1, 2)
    harness.claims.outage.remaining = 2
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1.1)

        assert sorted(harness.begun_ids) == [1, 2]
        assert harness.slots.busy_total == 2


async def test_a_place_that_becomes_free_goes_to_the_oldest_in_the_backlog() -> None:
    harness = Harness(ONE_SLOT)
    async with harness.running(harness.backlog.run):
        harness.slots.reserve(ONE_SLOT)
        harness.slots.start(make_task(task_id=1))
        harness.make_due(2, 3)
        harness.slots.mark_backlog("orders")
        await settled()
        before = list(harness.begun_ids)
        harness.end(1)
        await settled()

        assert (before, harness.begun_ids) == ([1], [1, 2])


async def test_a_backlog_is_worked_off_to_the_last() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(1, 2, 3)
    harness.fill_the_slot()
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        for task_id in (1, 2, 3):
            await settled()
            harness.end(task_id)
        await settled()

        assert harness.begun_ids == [1, 2, 3]
        assert not harness.slots.has_backlog("orders")
        assert harness.slots.reserve(ONE_SLOT)


async def test_neither_a_crowd_of_timers_nor_one_of_calls_keeps_the_others_waiting() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(*range(1, 101))
    harness.fill_the_slot()
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await settled()
        harness.make_due(*range(1001, 1101), task_type=TaskType.CALL)
        for _ in range(6):
            harness.end(harness.begun_ids[-1])
            await settled()

        # A new call waits for one timer at most, and a timer for one call.
        assert harness.begun_ids[1:] in (
            [1001, 2, 1002, 3, 1003, 4], [2, 1001, 3, 1002, 4, 1003],
        )  # fmt: skip


async def test_a_crowd_of_timers_without_places_does_not_hold_up_the_loop() -> None:
    harness = Harness(ONE_SLOT)
    harness.slots.reserve(ONE_SLOT)
    harness.remember(*range(1, 1001))
    harness.due_queue.changed.clear()
    passed: list[int] = []

    async def look_on() -> None:
        while harness.due_queue.wait_seconds() is not None:
            passed.append(len(passed))
            await asyncio.sleep(0)

    await asyncio.sleep(0.01)
    async with harness.running(harness.timers.run, look_on):
        await settled()

    assert len(passed) >= 20


async def test_what_was_marked_during_a_claim_is_looked_for_again(harness: Harness) -> None:
    (namespace,) = harness.namespaces.known()
    harness.slots.reserve(namespace)
    marks = [lambda: harness.slots.mark_backlog("orders")]
    harness.claims.meanwhile = lambda: marks.pop()() if marks else None
    async with harness.running(harness.backlog.run):
        harness.slots.mark_backlog("orders")
        await settled()

    assert harness.claims.asked.count("claim_due overdue=0 wait=True") == 2


async def test_a_claim_that_another_replica_wins_does_not_end_the_backlog() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(1)
    harness.claims.misses = 2
    harness.fill_the_slot()
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await asyncio.sleep(1)

        assert harness.begun_ids == [1]


async def test_the_backlog_of_a_namespace_that_is_gone_is_forgotten(harness: Harness) -> None:
    harness.slots.reserve(make_namespace("void"))
    async with harness.running(harness.backlog.run):
        harness.slots.mark_backlog("void")
        await settled()

    assert not harness.slots.has_backlog("void")


async def test_an_outage_puts_the_backlog_off_and_keeps_no_slot() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(1)
    harness.claims.outage.remaining = 1
    harness.fill_the_slot()
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await settled()
        during = harness.slots.busy_total
        await asyncio.sleep(0.6)

        assert (during, harness.begun_ids) == (0, [1])


async def _scan_as_called(harness: Harness) -> None:
    harness.replies.work_is_due.set()
    await harness.due.run_called()


@pytest.mark.parametrize("scanner", ["timers", "backlog", "due", "called"])
async def test_a_claim_that_a_drain_breaks_off_keeps_no_place(
    harness: Harness, scanner: str
) -> None:
    harness.claims.hangs = True
    harness.make_due(1)
    harness.remember(1)
    if scanner == "backlog":
        harness.slots.give_back("orders", harness.slots.reserve_up_to(ONE_SLOT, 1))
        harness.slots.mark_backlog("orders")
    if scanner in {"due", "called"}:
        harness.claims.hangs_at = "claim_due"
    scans: dict[str, Callable[[], Awaitable[None]]] = {
        "timers": harness.timers.run,
        "backlog": harness.backlog.run,
        "due": harness.due.scan,
        "called": lambda: _scan_as_called(harness),
    }
    scanning = asyncio.ensure_future(scans[scanner]())
    await harness.claims.hanging.wait()
    while_claiming = harness.slots.busy_total

    scanning.cancel()
    await asyncio.wait({scanning})

    assert while_claiming > 0
    assert harness.slots.busy_total == 0


async def test_the_scan_finds_what_nobody_claimed_at_its_time(harness: Harness) -> None:
    harness.make_due(1)
    async with harness.running():
        await harness.due.scan()
        await settled()

        assert harness.begun_ids == [1]

    assert harness.observers.counts["scan_found"] == 1
    assert harness.claims.asked == [
        "find_upcoming",
        "find_overdue",
        "claim_due overdue=1 wait=False",
    ]


@pytest.mark.parametrize("taken", [False, True])
async def test_what_this_replica_was_about_to_claim_counts_as_no_find_of_the_scan(
    harness: Harness, taken: bool
) -> None:
    """As when it is starved of CPU, or its claim takes long."""
    harness.make_due(1)
    harness.remember(1)
    if taken:
        await asyncio.sleep(0.01)
        assert len(harness.due_queue.take_due(1)) == 1
    async with harness.running():
        await harness.due.scan()
        await settled()

        assert harness.begun_ids == [1]

    assert harness.observers.counts["scan_found"] == 0


async def test_what_a_backlog_would_have_claimed_counts_as_no_find_of_the_scan() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(1)
    harness.fill_the_slot()

    def free_the_slot() -> None:
        if harness.claims.asked[-1] == "find_overdue":
            harness.slots.give_back("orders")

    harness.claims.meanwhile = free_the_slot
    async with harness.running():
        await harness.due.scan()
        await settled()

        assert harness.begun_ids == [1]

    assert harness.observers.counts["scan_found"] == 0


@pytest.mark.parametrize(
    ("count", "page_count"), [(25, 3), (10 * PAGES_MAX + 10, PAGES_MAX)], ids=["all", "bounded"]
)
async def test_a_crowd_of_timers_is_read_page_by_page_and_only_so_many_in_a_scan(
    harness: Harness, count: int, page_count: int
) -> None:
    harness.claims.upcoming = [
        make_due(task_id, due_at=START + seconds(task_id / 1000)) for task_id in range(count)
    ]
    async with harness.running():
        await harness.due.scan()
        await asyncio.sleep(count / 1000)

    assert harness.claims.asked.count("find_upcoming") == page_count
    assert len(harness.due_queue.take_due(count)) == min(count, 10 * page_count)


async def test_the_scan_of_a_draining_replica_only_reads_the_namespaces(harness: Harness) -> None:
    harness.slots.draining = True

    await harness.due.scan()

    assert (harness.namespaces.refresh_count, harness.claims.asked) == (1, [])


async def test_what_the_scan_finds_no_worker_for_is_not_overtaken() -> None:
    harness = Harness(ONE_SLOT)
    harness.make_due(1)
    harness.slots.reserve(ONE_SLOT)

    await harness.due.scan()

    assert harness.slots.has_backlog("orders")


async def test_a_claim_of_the_scan_that_fails_keeps_no_place(harness: Harness) -> None:
    harness.make_due(1)
    harness.claims.fails_at = "claim_due"

    with pytest.raises(errors.StorageUnavailableError):
        await harness.due.scan()

    assert harness.slots.busy_total == 0


async def test_what_another_replica_leaves_is_taken_over_at_once(harness: Harness) -> None:
    async with harness.running(harness.due.run_called):
        harness.make_due(1)
        harness.replies.work_is_due.set()
        await settled()

        assert harness.begun_ids == [1]

    assert harness.claims.asked == ["find_overdue", "claim_due overdue=0 wait=False"]
    assert harness.observers.counts["scan_found"] == 0


async def test_an_outage_leaves_what_was_called_for_to_the_scan(harness: Harness) -> None:
    harness.claims.outage.remaining = 1
    async with harness.running(harness.due.run_called):
        harness.make_due(1, 2)
        harness.replies.work_is_due.set()
        await settled()
        first = list(harness.begun_ids)
        harness.replies.work_is_due.set()
        await settled()

        assert (first, sorted(harness.begun_ids)) == ([], [1, 2])
