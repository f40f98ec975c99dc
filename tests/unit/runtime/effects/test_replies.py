"""Replies: how callers learn that their tasks have ended."""

import asyncio

import pytest

from progressor.runtime.effects import replies as module
from tests.support.builders import make_result, make_task
from tests.support.runtime.harness import (
    Harness,
    running,
)
from tests.support.runtime.virtual_time import settled
from tests.support.telemetry.measured import counted, recorded


async def test_a_task_is_forgotten_with_its_last_waiter(harness: Harness) -> None:
    first, second = harness.expect(), harness.expect()

    harness.replies.forget(7, first)
    after_first = harness.replies.waiting_count
    harness.replies.forget(7, second)
    harness.replies.forget(7, second)

    assert (after_first, harness.replies.waiting_count) == (1, 0)


async def test_a_task_that_ended_before_it_was_expected_is_fetched(harness: Harness) -> None:
    harness.replies.deliver(make_result())
    harness.end_elsewhere(7)
    async with running(harness.replies.run):
        waiter = harness.expect()

        assert await waiter == make_result()

    assert asyncio.get_running_loop().time() == 0


async def test_only_so_many_early_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EARLY_MAX", 1)
    harness = Harness()
    harness.replies.deliver(make_result(7))
    harness.replies.deliver(make_result(8))
    async with running(harness.replies.run):
        harness.expect(7)
        harness.expect(8)
        await settled()

    assert harness.results.fetches == [(8,)]


@pytest.mark.parametrize("is_early", [False, True], ids=["expected before", "expected after"])
async def test_a_notification_brings_the_answer_of_another_replica(
    harness: Harness, is_early: bool
) -> None:
    waiter = None if is_early else harness.expect()
    async with running(harness.replies.run):
        harness.end_elsewhere(7)
        harness.listener.notify(7)
        await settled()
        waiter = waiter or harness.expect()

        assert await waiter == make_result()

    assert asyncio.get_running_loop().time() == 0
    assert harness.observers.counts["reply_fetched"] == 1
    assert counted(harness.metrics.replies) == {("remote",): 1}


async def test_a_request_for_help_is_passed_on(harness: Harness) -> None:
    async with running(harness.replies.run):
        harness.listener.call()
        await harness.replies.work_is_due.wait()

    assert harness.results.fetches == []


async def test_what_ended_while_nobody_listened_is_fetched_on_listening_again(
    harness: Harness,
) -> None:
    waiter = harness.expect()
    async with running(harness.replies.run):
        harness.listener.cut()
        await settled()
        harness.end_elsewhere(7)

        assert await waiter == make_result()

    assert asyncio.get_running_loop().time() == 0.5
    assert harness.listener.connections == 2


async def test_what_this_replica_carries_is_not_fetched_on_listening(harness: Harness) -> None:
    harness.leases.take(make_task(task_id=7))
    harness.expect(7)
    harness.expect(8)
    async with running(harness.replies.run):
        pass

    assert harness.results.fetches == [(8,)]


async def test_the_safety_net_finds_an_answer_without_a_notification_and_leaves_what_is_young(
    harness: Harness,
) -> None:
    async with running(harness.replies.run):
        await asyncio.sleep(0.5)
        waiter = harness.expect()
        await asyncio.sleep(1)
        young = list(harness.results.fetches)
        harness.end_elsewhere(7)

        assert await waiter == make_result()

    assert young == []
    assert asyncio.get_running_loop().time() == 2


async def test_the_safety_net_gives_all_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FETCH_MAX", 2)
    harness = Harness()
    async with running(harness.replies.run):
        for task_id in (1, 2, 3):
            harness.expect(task_id)
        await asyncio.sleep(3.5)

    assert harness.results.fetches == [(1, 2), (3, 1), (2, 3)]


async def test_nothing_is_fetched_for_callers_who_have_gone(harness: Harness) -> None:
    waiter = harness.expect()
    async with running(harness.replies.run):
        harness.results.fetches.clear()
        harness.listener.notify(7)
        harness.replies.forget(7, waiter)
        harness.replies.deliver(make_result())
        waiter = harness.expect()
        harness.replies.forget(7, waiter)
        await settled()

    assert harness.results.fetches == []


async def test_an_outage_delays_an_answer_and_loses_none(harness: Harness) -> None:
    waiter = harness.expect()
    harness.results.outage.remaining = 2
    harness.end_elsewhere(7)
    async with running(harness.replies.run):
        assert await waiter == make_result()

    assert len(harness.results.fetches) == 3


async def test_the_callers_of_other_replicas_but_not_this_one_are_notified_in_batches(
    harness: Harness,
) -> None:
    async with running(harness.replies.run):
        harness.replies.deliver(make_result(7), (1, 2, 3))
        harness.replies.deliver(make_result(8), (2,))
        harness.replies.deliver(make_result(9), (1,))
        await settled()

    assert harness.results.notified == [{2: [7, 8], 3: [7]}]


async def test_a_notification_that_cannot_be_sent_is_counted(harness: Harness) -> None:
    harness.results.outage.remaining = 1
    async with running(harness.replies.run):
        harness.replies.deliver(make_result(), (2,))
        await settled()

    assert harness.observers.counts["notification_lost"] == 1
    assert counted(harness.metrics.notifications_lost) == {(): 1}
    assert recorded(harness.metrics.notification) == {}


async def test_notifications_beyond_the_bound_are_left_to_the_scan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OUTGOING_MAX", 2)
    harness = Harness()
    for task_id in range(1, 5):
        harness.replies.deliver(make_result(task_id), (2,), namespace="orders")
    async with running(harness.replies.run):
        await settled()
        harness.replies.deliver(make_result(5), (2,), namespace="orders")
        await settled()

    assert harness.results.notified == [{2: [1, 2]}, {2: [5]}]
    assert harness.observers.counts["notification_lost"] == 2
    assert counted(harness.metrics.notifications_lost) == {(): 2}
    assert recorded(harness.metrics.notification) == {("orders", "call"): (2, 0)}


async def test_a_connection_that_is_closed_in_good_order_is_opened_again(harness: Harness) -> None:
    async with running(harness.replies.run):
        harness.listener.hang_up()
        await settled()

    assert harness.listener.connections == 2
