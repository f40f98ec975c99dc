"""Queues of tasks with constraints: each is counted under what it waits for, and nowhere else."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.domain.views.activity import Queue
from tests.support.clock import ManualClock
from tests.support.models.gates.walk import Walk
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
SECOND = dt.timedelta(seconds=1)
MUTEX = Constraints(gates={"mutex": 1})


def queue(**fields: float) -> Queue:
    """Return what waits, nothing unless said."""
    nothing: dict[str, Any] = {
        "due": 0, "due_seconds": 0.0, "timers": 0, "retries": 0, "retry_seconds": 0.0,
        "behind": 0, "behind_seconds": 0.0,
    }  # fmt: skip
    return Queue(namespace=NAMESPACE.name, **(nothing | fields))


async def counted(store: Store, *, count_max: int = 10_000) -> Queue:
    """Return what waits in the namespace of all tests."""
    [found] = await store.queues.count([NAMESPACE.name], count_max=count_max)
    return found


async def constrained(
    store: Store,
    constraints: Constraints = MUTEX,
    *,
    key: ProcessKey | None = None,
    task_type: TaskType = TaskType.CALL,
) -> ProcessKey:
    """Admit a request with constraints, on a process that is there for it."""
    if key is None:
        key = fresh_key()
        if task_type is not TaskType.INIT:
            await store.started(key)
    await store.admit(a_request(key, task_type, constraints=constraints), run=False)
    return key


async def holding(store: Store, constraints: Constraints = MUTEX) -> RunningTask:
    """Return a task that has passed its gates and runs."""
    await constrained(store, constraints)
    [claimed] = await store.claim_due()
    return claimed.task


def versioned(version: int) -> Constraints:
    """Return a place in the order of all tests."""
    return Constraints(order=Order("schema", Version((version,))))


async def test_one_that_has_passed_its_gates_is_available_and_not_due_besides(
    store: Store, clock: ManualClock
) -> None:
    await constrained(store)
    key = fresh_key()
    await store.started(key)
    clock.advance(2 * SECOND)
    await store.admit(a_request(key), run=False)
    clock.advance(SECOND)

    assert await counted(store) == queue(
        due=1, due_seconds=1.0, available=1, available_seconds=3.0, held=1
    )


async def test_one_that_runs_is_not_available_and_holds_its_gates(store: Store) -> None:
    await holding(store, Constraints(gates={"mutex": 1, "rollout": 5}))

    assert await counted(store) == queue(held=2)


async def test_a_place_that_its_process_keeps_is_held_though_nothing_waits(store: Store) -> None:
    await store.settled(await holding(store, Constraints(gates={"a": 1}, hold=GateHold.PROCESS)))

    assert await counted(store) == queue(held=1)


async def test_those_in_line_wait_for_the_gate_since_they_came_to_it(
    store: Store, clock: ManualClock
) -> None:
    await holding(store)
    await constrained(store, Constraints(run_at=clock.now() + HOUR, gates={"mutex": 1}))
    clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    clock.advance(3 * SECOND)
    await constrained(store)

    assert await counted(store) == queue(gate=2, gate_seconds=3.0, held=1, full_gates=1)


async def test_full_gates_are_those_with_a_line_however_many_lines(store: Store) -> None:
    for gate in ("a", "b", "full but unwanted"):
        await holding(store, Constraints(gates={gate: 1}))
    for gates in ({"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1}, {"b": 1}):
        await constrained(store, Constraints(gates=gates))

    assert await counted(store) == queue(gate=5, held=3, full_gates=2)


async def test_a_request_waits_for_its_instant(store: Store, clock: ManualClock) -> None:
    for _ in range(2):
        await constrained(store, Constraints(run_at=clock.now() + HOUR))

    assert await counted(store) == queue(run_at=2)


async def test_a_larger_version_waits_for_the_smaller_one(store: Store, clock: ManualClock) -> None:
    await constrained(store, versioned(1))
    clock.advance(SECOND)
    await constrained(store, versioned(2))
    clock.advance(SECOND)

    assert await counted(store) == queue(
        order=1, order_seconds=1.0, available=1, available_seconds=2.0
    )


async def test_one_waits_behind_a_task_of_its_own_process(store: Store, clock: ManualClock) -> None:
    key = fresh_key()
    await store.started(key)
    await store.run_task(a_request(key))
    clock.advance(SECOND)
    await constrained(store, key=key)
    clock.advance(4 * SECOND)

    assert await counted(store) == queue(behind=1, behind_seconds=4.0)


async def test_what_is_behind_is_as_old_as_the_oldest_with_constraints_or_without(
    store: Store, clock: ManualClock
) -> None:
    key = fresh_key()
    await store.started(key)
    await store.run_task(a_request(key))
    await store.admit(a_request(key), run=False)
    clock.advance(SECOND)
    await constrained(store, key=key)
    clock.advance(SECOND)

    assert await counted(store) == queue(behind=2, behind_seconds=2.0)


async def test_what_comes_after_an_init_task_with_constraints_is_behind_it(
    store: Store, clock: ManualClock
) -> None:
    await holding(store)
    key = await constrained(store, task_type=TaskType.INIT)
    await store.admit(a_request(key), run=False)
    clock.advance(2 * SECOND)

    assert await counted(store) == queue(
        gate=1, gate_seconds=2.0, held=1, full_gates=1, behind=1, behind_seconds=2.0
    )


async def test_a_timer_with_constraints_is_a_timer_until_its_time_and_never_late(
    store: Store, clock: ManualClock
) -> None:
    await store.timed(HOUR, constraints=MUTEX)
    ahead = await counted(store)
    await holding(store)
    clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    clock.advance(SECOND)

    assert ahead == queue(timers=1)
    assert await counted(store) == queue(gate=1, gate_seconds=1.0, held=1, full_gates=1)


async def test_a_timer_that_waited_for_its_gate_is_due_since_it_has_it(
    store: Store, clock: ManualClock
) -> None:
    holder = await holding(store)
    await store.timed(SECOND, constraints=MUTEX)
    clock.advance(HOUR)
    await store.gates.promote_due([NAMESPACE.name])
    await store.settled(holder)
    clock.advance(2 * SECOND)
    waiting = await counted(store)

    # Not overdue for an hour: the safety net would say that no replica has looked.
    assert await store.claim_due(overdue=HOUR) == []
    [claimed] = await store.claim_due()
    assert waiting == queue(available=1, available_seconds=2.0, held=1)
    assert claimed.due_at == clock.now() - 2 * SECOND


async def test_a_retry_is_a_retry_whose_gates_are_free(store: Store, clock: ManualClock) -> None:
    task = await holding(store)
    clock.advance(5 * SECOND)
    await store.settled(task, UNREACHABLE)

    assert await counted(store) == queue(retries=1, retry_seconds=5.0)


async def test_retries_with_constraints_and_without_are_counted_together(
    store: Store, clock: ManualClock
) -> None:
    key = fresh_key()
    await store.started(key)
    await store.settled(await store.run_task(a_request(key)), UNREACHABLE)
    clock.advance(NO_TIME)
    await store.settled(await holding(store), UNREACHABLE)
    await store.timed(HOUR)

    assert await counted(store) == queue(retries=2, timers=1)


async def test_each_cause_is_counted_up_to_the_bound(store: Store, clock: ManualClock) -> None:
    running = fresh_key()
    for number in range(4):
        await holding(store, Constraints(gates={f"gate {number}": 1}))
    await holding(store)
    await store.start(running)
    for number in range(4):
        await constrained(store)
        await constrained(store, versioned(number))
        await constrained(store, Constraints(run_at=clock.now() + HOUR))
        await constrained(store, Constraints(gates={"wide": 9}))
        await constrained(store, key=running)
        await store.timed(HOUR, constraints=MUTEX)

    assert await counted(store, count_max=3) == queue(
        timers=3, run_at=3, order=3, gate=3, available=3, behind=3, held=3, full_gates=1
    )  # fmt: skip


async def test_a_retry_is_counted_behind_any_number_of_timers(
    store: Store, clock: ManualClock
) -> None:
    for _ in range(4):
        await store.timed(HOUR, constraints=MUTEX)
        await constrained(store, Constraints(run_at=clock.now() + SECOND / 1000))
    await store.settled(await holding(store), UNREACHABLE)

    assert await counted(store, count_max=3) == queue(timers=3, run_at=3, retries=1)


@pytest.mark.parametrize("seed", range(6))
async def test_every_task_that_waits_is_counted_once(
    store: Store, clock: ManualClock, observer: psycopg.Connection[Any], seed: int
) -> None:
    walk = Walk(store, clock, seed)
    for _ in range(120):
        await walk.step()

        found = await counted(store)
        waiting = observer.execute(
            "SELECT count(*) FROM progressor.tasks WHERE status = 'waiting'"
        ).fetchone()
        assert waiting is not None
        assert (
            found.due + found.timers + found.retries + found.behind + found.run_at
            + found.order + found.gate + found.available
        ) == waiting[0], found  # fmt: skip
