"""Queues: what waits is counted under what it waits for."""

import dataclasses
import datetime as dt

import pytest

from progressor.domain.processes.namespace import Namespace
from progressor.domain.views.activity import Queue
from tests.support.clock import ManualClock
from tests.support.storage.store import (
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOUR = dt.timedelta(hours=1)


async def counted(store: Store, *, count_max: int = 10_000) -> Queue:
    """Return what waits in the namespace of all tests."""
    [queue] = await store.queues.count([NAMESPACE.name], count_max=count_max)
    return queue


EMPTY = Queue(
    namespace=NAMESPACE.name, due=0, due_seconds=0.0, timers=0, retries=0, retry_seconds=0.0,
    behind=0, behind_seconds=0.0,
)  # fmt: skip


def queue(**fields: float) -> Queue:
    """Return what waits, nothing unless said."""
    return dataclasses.replace(EMPTY, **fields)  # type: ignore[arg-type]


async def test_nothing_waits_where_nothing_is(store: Store) -> None:
    assert await counted(store) == queue()


async def test_a_running_task_does_not_wait(store: Store) -> None:
    await store.start(fresh_key())

    assert await counted(store) == queue()


async def test_a_timer_waits_for_its_time_and_then_for_a_worker(
    store: Store, clock: ManualClock
) -> None:
    await store.timed(HOUR)
    ahead = await counted(store)

    clock.advance(HOUR + dt.timedelta(seconds=2))

    assert ahead == queue(timers=1)
    assert await counted(store) == queue(due=1, due_seconds=2.0)


async def test_a_request_that_finds_no_worker_is_due(store: Store, clock: ManualClock) -> None:
    key = fresh_key()
    await store.started(key)
    await store.admit(a_request(key), run=False)
    await store.timed(NO_TIME)

    clock.advance(dt.timedelta(seconds=3))

    assert await counted(store) == queue(due=2, due_seconds=3.0)


async def test_a_failed_attempt_waits_for_its_retry(store: Store) -> None:
    key = fresh_key()
    await store.started(key)
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)

    assert await counted(store) == queue(retries=1)


async def test_requests_wait_behind_the_one_that_runs(store: Store) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(3):
        await store.admit(a_request(key))

    assert await counted(store) == queue(behind=3)


async def test_a_timer_waits_behind_a_call(store: Store) -> None:
    key, _ = await store.timed(HOUR)
    await store.run_task(a_request(key))

    assert await counted(store) == queue(behind=1)


async def test_requests_wait_behind_one_that_waits_itself(store: Store) -> None:
    retried, due = fresh_key(), fresh_key()
    for key in (retried, due):
        await store.started(key)
    await store.settled(await store.run_task(a_request(retried)), UNREACHABLE)
    await store.admit(a_request(retried))
    await store.admit(a_request(due), run=False)
    await store.admit(a_request(due), run=False)

    assert await counted(store) == queue(due=1, retries=1, behind=2)


async def test_a_retry_is_as_old_as_its_first_attempt(store: Store, clock: ManualClock) -> None:
    key = fresh_key()
    await store.started(key)
    call = await store.run_task(a_request(key))
    clock.advance(dt.timedelta(seconds=3))
    await store.settled(call, UNREACHABLE)

    assert await counted(store) == queue(retries=1, retry_seconds=3.0)


async def test_a_retry_keeps_its_age_through_its_attempts(store: Store, clock: ManualClock) -> None:
    key = fresh_key()
    await store.started(key)
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)
    clock.advance(HOUR)
    [again] = await store.claim_due()
    await store.settled(again.task, UNREACHABLE)

    assert await counted(store) == queue(retries=1, retry_seconds=3600.0)


async def test_a_request_behind_a_task_is_as_old_as_its_admission(
    store: Store, clock: ManualClock
) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(2):
        clock.advance(dt.timedelta(seconds=5))
        await store.admit(a_request(key))
    clock.advance(dt.timedelta(seconds=2))

    assert await counted(store) == queue(behind=2, behind_seconds=7.0)


async def test_a_timer_behind_a_call_is_as_old_as_it_is_late(
    store: Store, clock: ManualClock
) -> None:
    key, _ = await store.timed(HOUR)
    await store.run_task(a_request(key))
    clock.advance(HOUR + dt.timedelta(seconds=4))

    assert await counted(store) == queue(behind=1, behind_seconds=4.0)


async def test_each_cause_is_counted_up_to_the_bound(store: Store, clock: ManualClock) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(5):
        await store.admit(a_request(key))
        await store.timed(NO_TIME)
    for _ in range(5):
        await store.timed(HOUR)
    clock.advance(dt.timedelta(seconds=1))

    assert await counted(store, count_max=4) == queue(
        due=4, due_seconds=1.0, timers=4, behind=4, behind_seconds=1.0
    )


async def test_a_retry_is_counted_behind_any_number_of_timers(store: Store) -> None:
    key, _ = await store.timed(NO_TIME)
    for _ in range(4):
        await store.timed(dt.timedelta(milliseconds=1))
    [timeout] = await store.claim_due()
    assert timeout.task.key == key
    await store.settled(timeout.task, UNREACHABLE)

    assert await counted(store, count_max=3) == queue(timers=3, retries=1)


async def test_a_timer_that_would_be_tried_again_waits_behind_a_call_alone(store: Store) -> None:
    key, _ = await store.timed(NO_TIME)
    [timeout] = await store.claim_due()
    await store.settled(timeout.task, UNREACHABLE)
    await store.run_task(a_request(key))

    assert await counted(store) == queue(behind=1)


async def test_many_namespaces_share_what_is_counted_and_the_crowded_ones_once_more(
    store: Store,
) -> None:
    key = fresh_key()
    await store.start(key)
    for _ in range(5):
        await store.admit(a_request(key))
        await store.timed(HOUR)

    found = await store.queues.count(["elsewhere", NAMESPACE.name], rows_max=4)

    assert set(found) == {
        dataclasses.replace(EMPTY, namespace="elsewhere"), queue(timers=2, behind=4),
    }  # fmt: skip


async def test_each_namespace_has_a_queue_of_its_own(store: Store) -> None:
    other = Namespace(name="elsewhere", processor_targets=("127.0.0.1:1",))
    await store.timed(HOUR)

    found = await store.queues.count([other.name, NAMESPACE.name])

    assert {each.namespace: each.timers for each in found} == {"elsewhere": 0, NAMESPACE.name: 1}
