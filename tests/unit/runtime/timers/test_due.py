"""The safety net: the scan finds unclaimed tasks, and frees its reservations when a claim fails."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from progressor import errors
from progressor.runtime.timers.due import PAGES_MAX
from tests.support.builders import (
    make_due,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.claims import ONE_PLACE, Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled


async def _scan_as_called(harness: Harness) -> None:
    harness.due.called.set()
    await harness.due.run_called()


@pytest.mark.parametrize("scanner", ["timers", "backlog", "due", "called"])
@in_virtual_time
async def test_a_claim_that_a_drain_breaks_off_keeps_no_place(scanner: str) -> None:
    harness = Harness()
    harness.claims.hangs = True
    harness.make_due(1)
    harness.remember(1)
    if scanner == "backlog":
        harness.slots.give_back("orders", harness.slots.reserve_up_to(ONE_PLACE, 1))
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
    while_claiming = harness.slots.busy_count("orders")

    scanning.cancel()
    await asyncio.wait({scanning})

    assert while_claiming > 0
    assert harness.slots.busy_count("orders") == 0


@in_virtual_time
async def test_the_scan_finds_what_nobody_claimed_at_its_time() -> None:
    harness = Harness()
    harness.make_due(1)
    async with harness.running():
        await harness.due.scan()
        await settled()

        assert harness.carried == [1]

    assert harness.observers.counts["scan_found"] == 1
    assert harness.claims.asked == [
        "find_upcoming",
        "find_overdue",
        "claim_due overdue=1 wait=False",
    ]


@in_virtual_time
async def test_a_crowd_of_timers_is_read_page_by_page() -> None:
    harness = Harness()
    harness.claims.upcoming = [
        make_due(task_id, due_at=START + seconds(task_id / 100)) for task_id in range(1, 26)
    ]
    async with harness.running():
        await harness.due.scan()
        await asyncio.sleep(1)

    assert harness.claims.asked.count("find_upcoming") == 3
    assert len(harness.due_queue.take_due(100)) == 25


@in_virtual_time
async def test_one_scan_reads_only_so_many_pages() -> None:
    harness = Harness()
    harness.claims.upcoming = [
        make_due(task_id, due_at=START + seconds(task_id / 1000))
        for task_id in range(1, 10 * PAGES_MAX + 11)
    ]

    await harness.due.scan()

    assert harness.claims.asked.count("find_upcoming") == PAGES_MAX


@in_virtual_time
async def test_the_scan_of_a_draining_replica_only_reads_the_namespaces() -> None:
    harness = Harness()
    harness.slots.draining = True

    await harness.due.scan()

    assert (harness.namespaces.refresh_count, harness.claims.asked) == (1, [])


@in_virtual_time
async def test_what_the_scan_finds_no_worker_for_is_not_overtaken() -> None:
    harness = Harness(ONE_PLACE)
    harness.make_due(1)
    harness.slots.reserve(ONE_PLACE)

    await harness.due.scan()

    assert harness.slots.has_backlog("orders")


@in_virtual_time
async def test_a_claim_of_the_scan_that_fails_keeps_no_place() -> None:
    harness = Harness()
    harness.make_due(1)
    harness.claims.fails_at = "claim_due"

    with pytest.raises(errors.StorageUnavailableError):
        await harness.due.scan()

    assert harness.slots.busy_count("orders") == 0


@in_virtual_time
async def test_what_another_replica_leaves_is_taken_over_at_once() -> None:
    harness = Harness()
    async with harness.running(harness.due.run_called):
        harness.make_due(1)
        harness.due.called.set()
        await settled()

        assert harness.carried == [1]

    assert harness.claims.asked == ["find_overdue", "claim_due overdue=0 wait=False"]
    assert harness.observers.counts["scan_found"] == 0


@in_virtual_time
async def test_an_outage_leaves_what_was_called_for_to_the_scan() -> None:
    harness = Harness()
    harness.claims.outage.remaining = 1
    async with harness.running(harness.due.run_called):
        harness.make_due(1, 2)
        harness.due.called.set()
        await settled()
        first = list(harness.carried)
        harness.due.called.set()
        await settled()

        assert (first, sorted(harness.carried)) == ([], [1, 2])
