"""Timers are claimed at their time by the replica that remembers them."""

import asyncio

from tests.support.runtime.claims import Harness
from tests.support.runtime.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_timer_is_claimed_the_moment_it_is_due() -> None:
    harness = Harness()
    harness.make_due(1)
    harness.remember(1, ahead=3)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(2.99)
        before = list(harness.carried)
        await asyncio.sleep(0.02)

        assert (before, harness.carried) == ([], [1])

    assert harness.observers.counts["timers_claimed"] == 1


@in_virtual_time
async def test_a_timer_that_is_set_while_all_wait_is_not_overslept() -> None:
    harness = Harness()
    harness.make_due(1, 2)
    harness.remember(1, ahead=4)
    async with harness.running(harness.timers.run):
        harness.remember(2, ahead=1)
        await asyncio.sleep(1.01)

        assert harness.carried == [2]


@in_virtual_time
async def test_a_timer_does_not_overtake_the_backlog() -> None:
    harness = Harness()
    harness.slots.reserve(harness.namespaces.known()[0])
    harness.slots.mark_backlog("orders")
    harness.make_due(1)
    harness.remember(1)
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1)

        assert harness.carried == []
        assert harness.slots.backlogs() == {"orders": 2}


@in_virtual_time
async def test_the_timer_of_a_namespace_that_is_gone_is_passed_over() -> None:
    harness = Harness()
    harness.make_due(1)
    harness.remember(1)
    harness.remember(2, namespace="void")
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1)

        assert harness.carried == [1]


@in_virtual_time
async def test_an_outage_puts_timers_off_and_loses_none() -> None:
    harness = Harness()
    harness.make_due(1, 2)
    harness.remember(1, 2)
    harness.claims.outage.remaining = 2
    async with harness.running(harness.timers.run):
        await asyncio.sleep(1.1)

        assert sorted(harness.carried) == [1, 2]
        assert harness.slots.busy_count("orders") == 2
