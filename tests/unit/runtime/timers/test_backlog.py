"""The backlog: tasks that were due while no worker was free run as workers become free."""

import asyncio

from progressor.domain.processes.task import TaskType
from tests.support.builders import (
    make_namespace,
    make_task,
)
from tests.support.runtime.claims import ONE_PLACE, Harness
from tests.support.runtime.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_a_place_that_becomes_free_goes_to_the_oldest_in_the_backlog() -> None:
    harness = Harness(ONE_PLACE)
    async with harness.running(harness.backlog.run):
        harness.slots.reserve(ONE_PLACE)
        harness.slots.start(make_task(task_id=1))
        harness.make_due(2, 3)
        harness.slots.mark_backlog("orders")
        await settled()
        before = list(harness.carried)
        harness.end(1)
        await settled()

        assert (before, harness.carried) == ([1], [1, 2])


@in_virtual_time
async def test_a_backlog_is_worked_off_to_the_last() -> None:
    harness = Harness(ONE_PLACE)
    harness.make_due(1, 2, 3)
    harness.slots.reserve(ONE_PLACE)
    harness.slots.mark_backlog("orders")
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        for task_id in (1, 2, 3):
            await settled()
            harness.end(task_id)
        await settled()

        assert harness.carried == [1, 2, 3]
        assert not harness.slots.has_backlog("orders")
        assert harness.slots.reserve(ONE_PLACE)


@in_virtual_time
async def test_a_fresh_call_waits_for_one_timer_of_a_crowd_at_most() -> None:
    harness = Harness(ONE_PLACE)
    crowd, calls = range(1, 101), (1001, 1002, 1003)
    harness.make_due(*crowd)
    harness.slots.reserve(ONE_PLACE)
    harness.slots.mark_backlog("orders")
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await settled()
        harness.make_due(*calls, task_type=TaskType.CALL)
        for _ in range(6):
            harness.end(harness.carried[-1])
            await settled()

        assert harness.carried[1:] in ([1001, 2, 1002, 3, 1003, 4], [2, 1001, 3, 1002, 4, 1003])


@in_virtual_time
async def test_a_crowd_of_calls_does_not_keep_a_timer_waiting() -> None:
    harness = Harness(ONE_PLACE)
    harness.make_due(1, 2)
    harness.make_due(*range(1001, 1101), task_type=TaskType.CALL)
    harness.slots.reserve(ONE_PLACE)
    harness.slots.mark_backlog("orders")
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await settled()
        for _ in range(3):
            harness.end(harness.carried[-1])
            await settled()

        assert {1, 2} < set(harness.carried)


@in_virtual_time
async def test_a_crowd_of_timers_without_places_does_not_hold_up_the_loop() -> None:
    harness = Harness(ONE_PLACE)
    harness.slots.reserve(ONE_PLACE)
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


@in_virtual_time
async def test_what_was_marked_during_a_claim_is_looked_for_again() -> None:
    harness = Harness()
    (namespace,) = harness.namespaces.known()
    harness.slots.reserve(namespace)
    marks = [lambda: harness.slots.mark_backlog("orders")]
    harness.claims.meanwhile = lambda: marks.pop()() if marks else None
    async with harness.running(harness.backlog.run):
        harness.slots.mark_backlog("orders")
        await settled()

    assert harness.claims.asked.count("claim_due overdue=0 wait=True") == 2


@in_virtual_time
async def test_a_claim_that_another_replica_wins_does_not_end_the_backlog() -> None:
    harness = Harness(ONE_PLACE)
    harness.make_due(1)
    harness.claims.misses = 2
    harness.slots.reserve(ONE_PLACE)
    harness.slots.mark_backlog("orders")
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await asyncio.sleep(1)

        assert harness.carried == [1]


@in_virtual_time
async def test_the_backlog_of_a_namespace_that_is_gone_is_forgotten() -> None:
    harness = Harness()
    harness.slots.reserve(make_namespace("void"))
    async with harness.running(harness.backlog.run):
        harness.slots.mark_backlog("void")
        await settled()

    assert not harness.slots.has_backlog("void")


@in_virtual_time
async def test_an_outage_puts_the_backlog_off_and_keeps_no_place() -> None:
    harness = Harness(ONE_PLACE)
    harness.make_due(1)
    harness.claims.outage.remaining = 1
    harness.slots.reserve(ONE_PLACE)
    harness.slots.mark_backlog("orders")
    async with harness.running(harness.backlog.run):
        harness.slots.give_back("orders")
        await settled()
        during = harness.slots.busy_count("orders")
        await asyncio.sleep(0.6)

        assert (during, harness.carried) == (0, [1])
