"""Cases of gates that crowds meet rarely: each was, or could be, a wait without an end."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.admission import Admission
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.storage.postgres.context import STARVATION_TIMEOUT
from progressor.storage.postgres.rows.effects import BATCH_MAX, Again
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    Store,
    a_request,
    fresh_key,
    running_stores,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
IN_HALF_A_SECOND = SetTimer(after=SECOND / 2)


def gates(*keys: str, **fields: Any) -> Constraints:
    return Constraints(gates=dict.fromkeys(keys, 1), **fields)


def ordered(version: int) -> Constraints:
    return Constraints(order=Order("o", Version((version,))))


async def call(store: Store, key: ProcessKey, constraints: Constraints | None = None) -> Admission:
    return await store.admit(a_request(key, constraints=constraints), run=False)


async def started(store: Store) -> ProcessKey:
    key = fresh_key()
    await store.started(key)
    return key


def told(store: Store) -> list[tuple[ProcessKey, int]]:
    """Take which tasks statements have told to be due."""
    due = [it for promoted in store.reported for it in promoted.due]
    store.reported.clear()
    return due


async def claim_reported(store: Store) -> list[RunningTask]:
    return [it.task for due in told(store) for it in await store.claim(*due)]


async def running(store: Store, key: ProcessKey, constraints: Constraints) -> RunningTask:
    """Return a task with constraints that nothing keeps."""
    await call(store, key, constraints)
    [task] = await claim_reported(store)
    return task


async def test_nothing_runs_while_an_init_task_waits_for_its_retry(store: Store) -> None:
    key = fresh_key()
    await store.admit(a_request(key, TaskType.INIT, constraints=gates("a")), run=False)
    [init] = await claim_reported(store)
    await call(store, key)
    await store.settled(init, UNREACHABLE)

    assert await claim_reported(store) == []
    assert await store.claim_due() == []


async def test_nothing_runs_while_an_init_task_stands_in_line(store: Store) -> None:
    holder = await running(store, await started(store), gates("a"))
    key = fresh_key()
    await store.admit(a_request(key, TaskType.INIT, constraints=gates("a")), run=False)
    await call(store, key)
    later = await call(store, key, gates("b"))

    assert await claim_reported(store) == []
    assert await store.claim_due() == []
    await store.settled(holder)
    [init] = await claim_reported(store)
    assert init.task_type is TaskType.INIT
    assert later.task_id is not None


async def test_more_than_a_statement_promotes_are_all_told(store: Store) -> None:
    count = BATCH_MAX + 20
    await running(store, await started(store), gates("a"))
    for _ in range(count):
        await call(store, await started(store), gates("a"))
    assert told(store) == []

    await store.set_capacity("a", count + 1)
    again = [it for promoted in store.reported for it in promoted.again]
    first = told(store)
    promoted = await store.gates.look_again(NAMESPACE.name, again)

    assert again == [Again(namespace=NAMESPACE.name, gate="a")]
    assert len(first) == BATCH_MAX
    assert len({*first, *promoted.due}) == count


async def test_more_of_one_version_than_a_statement_promotes_are_all_told(store: Store) -> None:
    count = BATCH_MAX + 20
    smallest = await running(store, await started(store), ordered(1))
    for _ in range(count):
        await call(store, await started(store), ordered(2))

    await store.settled(smallest)
    again = [it for promoted in store.reported for it in promoted.again]
    due = told(store)
    while again:
        promoted = await store.gates.look_again(NAMESPACE.name, again)
        due += promoted.due
        again = list(promoted.again)

    assert len(set(due)) == count


async def test_more_whose_instant_comes_than_a_statement_looks_at_are_all_told(
    store: Store,
) -> None:
    at_once = Constraints(run_at=store.clock.now() + SECOND)
    for _ in range(BATCH_MAX + 20):
        await call(store, await started(store), at_once)
    store.clock.advance(SECOND)

    first = await store.gates.promote_due([NAMESPACE.name])
    second = await store.gates.promote_due([NAMESPACE.name])

    assert (len(first.due), len(second.due)) == (BATCH_MAX, 20)
    assert [later.seconds for later in (*first.later, *second.later)] == [0.0]


async def test_a_process_does_not_wait_for_a_gate_that_it_holds_for_good(store: Store) -> None:
    mine, other = await started(store), await started(store)
    await store.settled(await running(store, mine, gates("a", hold=GateHold.PROCESS)))
    await call(store, other, gates("a"))

    await call(store, mine, gates("a"))

    assert [task.key for task in await claim_reported(store)] == [mine]


async def test_who_stands_in_line_leaves_it_when_its_process_comes_to_hold_the_gate(
    store: Store,
) -> None:
    mine, other = await started(store), await started(store)
    holder = await running(store, other, gates("a"))
    await call(store, mine, gates("a", hold=GateHold.PROCESS))
    await call(store, await started(store), gates("a"))
    await call(store, mine, gates("a"))
    await store.settled(holder)
    [first] = await claim_reported(store)

    await store.settled(first)

    [second] = await claim_reported(store)
    assert (first.key, second.key) == (mine, mine)


async def test_a_gate_that_two_tasks_of_a_process_share_is_held_until_both_have_ended(
    store: Store,
) -> None:
    mine, blocker = await started(store), await running(store, await started(store), gates("b"))
    await call(store, mine, gates("a", "b"))
    step = await running(store, mine, gates("a"))
    store.clock.advance(STARVATION_TIMEOUT)
    # It is old, and comes next behind the step that holds the gate a.
    await store.settled(blocker)
    await call(store, await started(store), gates("a"))

    await store.settled(step)

    [task] = await claim_reported(store)
    assert task.key == mine
    assert len((await store.gates.get(NAMESPACE.name, "a")).line) == 1


async def test_who_waits_for_its_retry_keeps_its_turn_and_who_is_behind_it_no_gate(
    store: Store,
) -> None:
    mine, holder = await started(store), await running(store, await started(store), gates("a"))
    old = await call(store, mine, gates("a"))
    step = await store.run_task(a_request(mine))
    store.clock.advance(STARVATION_TIMEOUT)
    await store.settled(holder)
    assert await store.task_status(mine, old.task_id or 0) is TaskStatus.AVAILABLE
    assert (await store.gates.get(NAMESPACE.name, "a")).gate.held == 1

    await store.settled(step, UNREACHABLE)

    assert await store.task_status(mine, old.task_id or 0) is TaskStatus.WAITING
    assert (await store.gates.get(NAMESPACE.name, "a")).gate.held == 0
    assert await claim_reported(store) == []
    store.clock.advance(dt.timedelta(seconds=10))
    [again] = [it.task for it in await store.claim_due()]
    assert (again.task_id, again.attempt) == (step.task_id, 2)
    await store.settled(again)
    [task] = await claim_reported(store)
    assert task.task_id == old.task_id


async def test_who_gives_way_lets_those_of_its_process_go_on(store: Store) -> None:
    key = await started(store)
    way = await call(store, key, gates("a"))
    behind = await call(store, key)
    assert [task_id for _, task_id in told(store)] == [way.task_id]

    await store.set_gate("a", 0)

    [task] = await claim_reported(store)
    assert task.task_id == behind.task_id
    assert await store.task_status(key, way.task_id or 0) is TaskStatus.WAITING


async def old_behind_a_step(store: Store) -> RunningTask:
    """Return the step of a process behind which an old call with a gate is next."""
    key, holder = await started(store), await running(store, await started(store), gates("a"))
    await call(store, key, gates("a"))
    step = await store.run_task(a_request(key))
    store.clock.advance(STARVATION_TIMEOUT)
    await store.settled(holder)
    return step


def instants(store: Store) -> set[tuple[ProcessKey, float]]:
    """Take what statements have told to be due later."""
    upcoming = {(it.key, it.seconds) for promoted in store.reported for it in promoted.upcoming}
    store.reported.clear()
    return upcoming


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
async def test_a_timer_that_a_cancelled_call_kept_waiting_is_told_with_its_instant(
    store: Store, is_gated: bool
) -> None:
    key = await started(store)
    if is_gated:
        await call(store, key, Constraints(run_at=store.clock.now() + STARVATION_TIMEOUT))
    step = await store.run_task(a_request(key))
    behind = await call(store, key)
    await store.settled(step, success(IN_HALF_A_SECOND), continues=False)
    store.reported.clear()

    await store.cancel(key, behind.task_id or 0)

    assert instants(store) == {(key, 0.5)}


async def test_a_timer_that_a_retry_with_gates_kept_waiting_is_told_with_its_instant(
    store: Store,
) -> None:
    step = await old_behind_a_step(store)
    await store.settled(step, success(IN_HALF_A_SECOND))
    [old] = await claim_reported(store)

    await store.settled(old, UNREACHABLE)

    assert instants(store) == {(step.key, 0.5)}


async def test_a_timer_that_one_kept_waiting_who_gives_way_is_told_with_its_instant(
    store: Store,
) -> None:
    step = await old_behind_a_step(store)
    await store.settled(step, success(IN_HALF_A_SECOND), continues=False)
    store.reported.clear()

    await store.set_gate("a", 0)

    assert instants(store) == {(step.key, 0.5)}


async def test_who_has_only_reserved_a_gate_gives_way_first(store: Store) -> None:
    await store.set_gate("a", 2)
    at_work = await running(store, await started(store), gates("a"))
    first = await running(store, await started(store), gates("a"))
    await running(store, await started(store), gates("b"))
    await call(store, await started(store), gates("a", "b"))
    store.clock.advance(STARVATION_TIMEOUT)
    await store.settled(first)
    assert [it.is_reserved for it in (await store.gates.get(NAMESPACE.name, "a")).holders] == [
        False,
        True,
    ]

    await store.set_gate("a", 1)

    [holder] = (await store.gates.get(NAMESPACE.name, "a")).holders
    assert holder.task_id == at_work.task_id


async def test_a_queue_whose_head_is_cancelled_competes_by_the_priority_of_the_next_one(
    store: Store,
) -> None:
    holder = await running(store, await started(store), gates("a"))
    first = await started(store)
    head = await call(store, first, gates("a", priority=1))
    await call(store, await started(store), gates("a", priority=5))
    second = await started(store)
    await call(store, second, gates("a", priority=2))
    await call(store, await started(store), gates("a", "b", priority=3))

    await store.cancel(first, head.task_id or 0)
    await store.settled(holder)

    assert [task.key for task in await claim_reported(store)] == [second]


async def test_a_gate_is_read_among_others(store: Store) -> None:
    for gate, capacity in (("a", 1), ("b", 2), ("c", 3)):
        await store.set_gate(gate, capacity)

    found = await store.gates.read(NAMESPACE.name, "b")
    page = await store.gates.list(NAMESPACE.name, after="a", limit=1)

    assert (found.gate, found.capacity, page) == ("b", 2, (found,))
    with pytest.raises(errors.GateNotFoundError):
        await store.gates.read(NAMESPACE.name, "bb")


async def test_a_repair_leaves_the_timer_that_waits_to_run_again(store: Store) -> None:
    key = fresh_key()
    timer = SetTimer(after=NO_TIME, constraints=gates("a"))
    await store.settled(await store.start(key), success(timer))
    [task] = await claim_reported(store)
    await store.settled(task, BROKEN)
    holder = await running(store, await started(store), gates("a"))
    await store.recover(key)
    repair = await store.run_task(a_request(key, TaskType.REPAIR))
    await store.settled(repair)
    await store.settled(holder)

    [again] = await claim_reported(store)
    traced = await store.processes.trace(key, after=0, limit=100)

    assert [it.status for it in traced if it.task_type is TaskType.TIMEOUT] == [TaskStatus.RUNNING]
    assert again.task_id == task.task_id


async def test_a_timer_run_again_keeps_its_gates_while_its_process_is_in_error(
    store: Store,
) -> None:
    key, other = fresh_key(), await started(store)
    timer = SetTimer(after=NO_TIME, constraints=gates("a"))
    await store.settled(await store.start(key), success(timer))
    [task] = await claim_reported(store)
    await store.settled(task, BROKEN)
    await store.recover(key)
    [again] = await claim_reported(store)
    repair = await store.admit(a_request(key, TaskType.REPAIR), run=False)
    await call(store, other, gates("a"))
    assert repair.task_id is not None

    await store.cancel(key, repair.task_id)

    assert told(store) == []
    [holder] = (await store.gates.get(NAMESPACE.name, "a")).holders
    assert holder.task_id == again.task_id


async def test_the_next_version_is_told_by_its_order_while_its_process_is_locked(
    store: Store, database: str, observer: psycopg.Connection[Any]
) -> None:
    # In new sessions: PL/pgSQL looks at a statement when it first comes to it, and a record has no
    # fields then if nothing was assigned to it yet.
    async with running_stores(database, clock=store.clock) as (new,):
        smaller = await call(new, first := await started(new), ordered(1))
        larger = await call(new, second := await started(new), ordered(2))
        assert told(new) == [(first, smaller.task_id)]
        with observer.transaction():
            observer.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR NO KEY UPDATE",
                (second.process_id,),
            )
            await new.cancel(first, smaller.task_id or 0)
        again = [it for promoted in new.reported for it in promoted.again]
        promoted = await new.gates.look_again(NAMESPACE.name, again)

    assert again == [Again(namespace=NAMESPACE.name, order_key="o")]
    assert promoted.due == ((second, larger.task_id),)


LOCKS = {
    "the first gate of its line": "SELECT FROM progressor.gates WHERE gate = 'a' FOR NO KEY UPDATE",
    "its order": "SELECT FROM progressor.orders FOR NO KEY UPDATE",
    "its process": "SELECT FROM progressor.processes p WHERE EXISTS (SELECT FROM progressor.gated g"
    " WHERE g.process_id = p.process_id AND g.state = 'gates') FOR NO KEY UPDATE",
}


@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS)
async def test_who_cannot_be_looked_at_now_is_left_as_it_is_and_told(
    store: Store, observer: psycopg.Connection[Any], lock: str
) -> None:
    busy = await started(store)
    holder = await running(store, await started(store), gates("b"))
    await call(store, busy, gates("a", "b", order=Order("o", Version((2,)))))
    # By now it would have to wait for its order, or for its process.
    await call(store, await started(store), gates("c", order=Order("o", Version((1,)))))
    smaller = await claim_reported(store)
    await store.run_task(a_request(busy))
    before = observer.execute("SELECT * FROM progressor.gate_queues").fetchall()

    with observer.transaction():
        observer.execute(lock.encode())
        await store.settled(holder)
        seen = observer.execute("SELECT * FROM progressor.gate_queues").fetchall()
    again = [it for promoted in store.reported for it in promoted.again]

    assert seen == before
    assert again == [Again(namespace=NAMESPACE.name, gate="b")]
    await store.gates.look_again(NAMESPACE.name, again)
    assert len(smaller) == 1
