"""The backlog: what was due while no worker was free is taken as places become free."""

import asyncio

from progressor.domain.processes.task import TaskType
from tests.support.builders import (
    make_namespace,
    make_task,
)
from tests.support.claims_bench import ONE_PLACE, Bench
from tests.support.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_a_place_that_becomes_free_goes_to_the_oldest_in_the_backlog() -> None:
    bench = Bench(ONE_PLACE)
    async with bench.running(bench.backlog.run):
        bench.slots.reserve(ONE_PLACE)
        bench.slots.start(make_task(task_id=1))
        bench.make_due(2, 3)
        bench.slots.mark_backlog("orders")
        await settled()
        before = list(bench.carried)
        bench.end(1)
        await settled()

        assert (before, bench.carried) == ([1], [1, 2])


@in_virtual_time
async def test_a_backlog_is_worked_off_to_the_last() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1, 2, 3)
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        for task_id in (1, 2, 3):
            await settled()
            bench.end(task_id)
        await settled()

        assert bench.carried == [1, 2, 3]
        assert not bench.slots.has_backlog("orders")
        assert bench.slots.reserve(ONE_PLACE)


@in_virtual_time
async def test_a_fresh_call_waits_for_one_timer_of_a_crowd_at_most() -> None:
    bench = Bench(ONE_PLACE)
    crowd, calls = range(1, 101), (1001, 1002, 1003)
    bench.make_due(*crowd)
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        await settled()
        bench.make_due(*calls, task_type=TaskType.CALL)
        for _ in range(6):
            bench.end(bench.carried[-1])
            await settled()

        assert bench.carried[1:] in ([1001, 2, 1002, 3, 1003, 4], [2, 1001, 3, 1002, 4, 1003])


@in_virtual_time
async def test_a_crowd_of_calls_does_not_keep_a_timer_waiting() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1, 2)
    bench.make_due(*range(1001, 1101), task_type=TaskType.CALL)
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        await settled()
        for _ in range(3):
            bench.end(bench.carried[-1])
            await settled()

        assert {1, 2} < set(bench.carried)


@in_virtual_time
async def test_a_crowd_of_timers_without_places_does_not_hold_up_the_loop() -> None:
    bench = Bench(ONE_PLACE)
    bench.slots.reserve(ONE_PLACE)
    bench.remember(*range(1, 1001))
    bench.due_queue.changed.clear()
    passed: list[int] = []

    async def look_on() -> None:
        while bench.due_queue.wait_seconds() is not None:
            passed.append(len(passed))
            await asyncio.sleep(0)

    await asyncio.sleep(0.01)
    async with bench.running(bench.timers.run, look_on):
        await settled()

    assert len(passed) >= 20


@in_virtual_time
async def test_what_was_marked_during_a_claim_is_looked_for_again() -> None:
    bench = Bench()
    (namespace,) = bench.namespaces.known()
    bench.slots.reserve(namespace)
    marks = [lambda: bench.slots.mark_backlog("orders")]
    bench.claims.meanwhile = lambda: marks.pop()() if marks else None
    async with bench.running(bench.backlog.run):
        bench.slots.mark_backlog("orders")
        await settled()

    assert bench.claims.asked.count("claim_due overdue=0 wait=True") == 2


@in_virtual_time
async def test_a_claim_that_another_replica_wins_does_not_end_the_backlog() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1)
    bench.claims.misses = 2
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        await asyncio.sleep(1)

        assert bench.carried == [1]


@in_virtual_time
async def test_tasks_that_stay_locked_are_left_to_the_scan() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1)
    bench.claims.misses = 1_000_000
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        await asyncio.sleep(5)

        assert not bench.slots.has_backlog("orders")


@in_virtual_time
async def test_a_draining_replica_leaves_its_backlog_to_others() -> None:
    bench = Bench()
    bench.slots.reserve(bench.namespaces.known()[0])
    async with bench.running(bench.backlog.run):
        bench.slots.draining = True
        bench.slots.mark_backlog("orders")
        await settled()

    assert bench.claims.asked == []


@in_virtual_time
async def test_the_backlog_of_a_namespace_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.slots.reserve(make_namespace("void"))
    async with bench.running(bench.backlog.run):
        bench.slots.mark_backlog("void")
        await settled()

    assert not bench.slots.has_backlog("void")


@in_virtual_time
async def test_an_outage_puts_the_backlog_off_and_keeps_no_place() -> None:
    bench = Bench(ONE_PLACE)
    bench.make_due(1)
    bench.claims.outage.remaining = 1
    bench.slots.reserve(ONE_PLACE)
    bench.slots.mark_backlog("orders")
    async with bench.running(bench.backlog.run):
        bench.slots.give_back("orders")
        await settled()
        during = bench.slots.busy_count("orders")
        await asyncio.sleep(0.6)

        assert (during, bench.carried) == (0, [1])
