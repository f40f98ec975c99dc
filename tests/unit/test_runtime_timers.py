"""Timers are claimed at their time by the replica that remembers them."""

import asyncio

from tests.support.claims_bench import ONE_PLACE, Bench
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_timer_is_claimed_the_moment_it_is_due() -> None:
    bench = Bench()
    bench.make_due(1)
    bench.remember(1, ahead=3)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(2.99)
        before = list(bench.carried)
        await asyncio.sleep(0.02)

        assert (before, bench.carried) == ([], [1])

    assert bench.observers.counts["timers_claimed"] == 1


@in_virtual_time
async def test_a_timer_that_is_set_while_all_wait_is_not_overslept() -> None:
    bench = Bench()
    bench.make_due(1, 2)
    bench.remember(1, ahead=4)
    async with bench.running(bench.timers.run):
        bench.remember(2, ahead=1)
        await asyncio.sleep(1.01)

        assert bench.carried == [2]


@in_virtual_time
async def test_a_timer_that_is_gone_is_nobodys_loss() -> None:
    bench = Bench()
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == []
        assert bench.slots.busy_count("orders") == 0

    assert bench.observers.counts["timers_claimed"] == 0


@in_virtual_time
async def test_a_timer_without_a_worker_joins_the_backlog() -> None:
    bench = Bench(ONE_PLACE)
    bench.slots.reserve(ONE_PLACE)
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.slots.has_backlog("orders")

    assert bench.claims.asked == []


@in_virtual_time
async def test_a_timer_does_not_overtake_the_backlog() -> None:
    bench = Bench()
    bench.slots.reserve(bench.namespaces.known()[0])
    bench.slots.mark_backlog("orders")
    bench.make_due(1)
    bench.remember(1)
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == []
        assert bench.slots.backlogs() == {"orders": 2}


@in_virtual_time
async def test_the_timer_of_a_namespace_that_is_gone_is_passed_over() -> None:
    bench = Bench()
    bench.make_due(1)
    bench.remember(1)
    bench.remember(2, namespace="void")
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1)

        assert bench.carried == [1]


@in_virtual_time
async def test_an_outage_puts_timers_off_and_loses_none() -> None:
    bench = Bench()
    bench.make_due(1, 2)
    bench.remember(1, 2)
    bench.claims.outage.remaining = 2
    async with bench.running(bench.timers.run):
        await asyncio.sleep(1.1)

        assert sorted(bench.carried) == [1, 2]
        assert bench.slots.busy_count("orders") == 2


@in_virtual_time
async def test_an_outage_on_the_way_to_a_namespace_keeps_no_place() -> None:
    bench = Bench()
    bench.remember(1, 2)
    bench.namespaces.outage.remaining = 1
    async with bench.running(bench.timers.run):
        await asyncio.sleep(0.1)

        assert bench.slots.busy_count("orders") == 0
