"""What a task with constraints has spent, and on what, as its claim tells it."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.task import RunningTask
from tests.support.clock import ManualClock
from tests.support.models.gates.walk import Walk
from tests.support.storage.store import (
    NAMESPACE,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
MUTEX = Constraints(gates={"mutex": 1})


def seconds_of(task: RunningTask) -> tuple[float, ...]:
    """Return what it has spent in seconds."""
    assert task.spent is not None
    return tuple(part / 1e6 for part in task.spent)


async def claimed(store: Store) -> RunningTask:
    """Return the one task that is due."""
    [each] = await store.claim_due()
    return each.task


async def test_each_wait_is_told_by_its_cause(store: Store, clock: ManualClock) -> None:
    holder, smaller, key = fresh_key(), fresh_key(), fresh_key()
    for each in (holder, smaller, key):
        await store.started(each)
    await store.admit(a_request(holder, constraints=MUTEX), run=False)
    holding = await claimed(store)
    one = Constraints(order=Order("v", Version((1,))))
    await store.admit(a_request(smaller, constraints=one), run=False)
    before = await claimed(store)
    busy = await store.run_task(a_request(key))
    constraints = Constraints(
        run_at=clock.now() + SECOND, order=Order("v", Version((2,))), gates={"mutex": 1}
    )
    await store.admit(a_request(key, constraints=constraints), run=False)

    clock.advance(SECOND)
    await store.gates.promote_due([NAMESPACE.name])
    clock.advance(2 * SECOND)
    await store.settled(before)
    clock.advance(3 * SECOND)
    await store.settled(busy)
    clock.advance(4 * SECOND)
    await store.settled(holding)
    clock.advance(5 * SECOND + dt.timedelta(microseconds=7))

    assert seconds_of(await claimed(store)) == (1, 2, 3, 4, 5.000007, 0)


async def test_what_it_ran_and_waited_for_its_retry_is_told_too(
    store: Store, clock: ManualClock
) -> None:
    key = fresh_key()
    await store.started(key)
    await store.admit(a_request(key, constraints=MUTEX), run=False)
    first = await claimed(store)
    clock.advance(2 * SECOND)
    written = await store.settled(first, UNREACHABLE)
    assert written.next is None
    delay = dt.timedelta()
    while not (again := await store.claim_due()):
        clock.advance(SECOND)
        delay += SECOND
        await store.gates.promote_due([NAMESPACE.name])

    assert seconds_of(first) == (0, 0, 0, 0, 0, 0)
    assert seconds_of(again[0].task) == (delay.total_seconds(), 0, 0, 0, 0, 2)


async def test_a_timer_has_waited_for_its_time_since_it_was_set(
    store: Store, clock: ManualClock
) -> None:
    holder = fresh_key()
    await store.started(holder)
    await store.admit(a_request(holder, constraints=MUTEX), run=False)
    holding = await claimed(store)
    await store.timed(5 * SECOND, constraints=MUTEX)
    clock.advance(5 * SECOND)
    await store.gates.promote_due([NAMESPACE.name])
    clock.advance(2 * SECOND)
    await store.settled(holding)
    clock.advance(SECOND)

    assert seconds_of(await claimed(store)) == (5, 0, 0, 2, 1, 0)


async def test_who_has_no_constraints_has_no_ledger_though_its_process_has_been_gated(
    store: Store, clock: ManualClock
) -> None:
    key = fresh_key()
    await store.started(key)
    later = Constraints(run_at=clock.now() + SECOND)
    await store.admit(a_request(key, constraints=later), run=False)
    await store.admit(a_request(key), run=False)

    assert (await claimed(store)).spent is None


@pytest.mark.parametrize("seed", range(6))
async def test_its_parts_add_up_to_its_life_until_the_attempt_began(
    store: Store, clock: ManualClock, observer: psycopg.Connection[Any], seed: int
) -> None:
    walk = Walk(store, clock, seed)
    count = 0
    for _ in range(200):
        await walk.step()
        for task in walk.claimed:
            found = observer.execute(
                "SELECT created_at, constraints IS NOT NULL FROM progressor.tasks"
                " WHERE task_id = %s",
                (task.task_id,),
            ).fetchone()
            assert found is not None
            created_at, is_constrained = found

            assert (task.spent is not None) == is_constrained
            if task.spent is not None:
                life = (task.started_at - created_at) // dt.timedelta(microseconds=1)
                assert sum(task.spent) == life
                assert min(task.spent) >= 0
                assert task.attempt > 1 or task.spent[5] == 0
                count += 1
        walk.claimed.clear()

    assert count > 0
