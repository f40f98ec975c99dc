"""Cases of gates that crowds meet rarely: each was, or could be, a wait without an end."""

import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.gates.constraint import Constraints, GateHold, Order, Version
from progressor.domain.processes.admission import Admission
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskStatus, TaskType
from progressor.storage.rows.gate_effects import BATCH_MAX, PATIENCE, Again
from tests.support.clock import ManualClock
from tests.support.invariants import broken_invariants
from tests.support.storage import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    Desk,
    a_request,
    create_namespace,
    empty,
    fresh_key,
    running_desks,
    success,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECOND = dt.timedelta(seconds=1)
IN_HALF_A_SECOND = SetTimer(after=SECOND / 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def storage(database: str) -> AsyncIterator[Desk]:
    create_namespace(database)
    async with running_desks(database, clock=ManualClock()) as (desk,):
        yield desk


@pytest.fixture(scope="module")
def eye(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def desk(storage: Desk, eye: psycopg.Connection[Any]) -> Iterator[Desk]:
    """Return a desk over empty tables; in the end all invariants hold."""
    empty(eye)
    storage.told.clear()
    yield storage
    assert broken_invariants(eye, at_rest=True, now=storage.clock.now()) == {}


def gates(*keys: str, **fields: Any) -> Constraints:
    return Constraints(gates=dict.fromkeys(keys, 1), **fields)


def ordered(version: int) -> Constraints:
    return Constraints(order=Order("o", Version((version,))))


async def call(desk: Desk, key: ProcessKey, constraints: Constraints | None = None) -> Admission:
    return await desk.admit(a_request(key, constraints=constraints), run=False)


async def started(desk: Desk) -> ProcessKey:
    key = fresh_key()
    await desk.started(key)
    return key


def told(desk: Desk) -> list[tuple[ProcessKey, int]]:
    """Take which tasks statements have told to be due."""
    due = [it for promoted in desk.told for it in promoted.due]
    desk.told.clear()
    return due


async def claim_told(desk: Desk) -> list[RunningTask]:
    return [it.task for due in told(desk) for it in await desk.claim(*due)]


async def running(desk: Desk, key: ProcessKey, constraints: Constraints) -> RunningTask:
    """Return a task with constraints that nothing keeps."""
    await call(desk, key, constraints)
    [task] = await claim_told(desk)
    return task


async def test_nothing_runs_while_an_init_task_waits_for_its_retry(desk: Desk) -> None:
    key = fresh_key()
    await desk.admit(a_request(key, TaskType.INIT, constraints=gates("a")), run=False)
    [init] = await claim_told(desk)
    await call(desk, key)
    await desk.settled(init, UNREACHABLE)

    assert await claim_told(desk) == []
    assert await desk.claim_due() == []


async def test_nothing_runs_while_an_init_task_stands_in_line(desk: Desk) -> None:
    holder = await running(desk, await started(desk), gates("a"))
    key = fresh_key()
    await desk.admit(a_request(key, TaskType.INIT, constraints=gates("a")), run=False)
    await call(desk, key)
    later = await call(desk, key, gates("b"))

    assert await claim_told(desk) == []
    assert await desk.claim_due() == []
    await desk.settled(holder)
    [init] = await claim_told(desk)
    assert init.task_type is TaskType.INIT
    assert later.task_id is not None


async def test_more_than_a_statement_promotes_are_all_told(desk: Desk) -> None:
    count = BATCH_MAX + 20
    await running(desk, await started(desk), gates("a"))
    for _ in range(count):
        await call(desk, await started(desk), gates("a"))
    assert told(desk) == []

    await desk.gates.set(NAMESPACE.name, "a", capacity=count + 1, expected_revision=0)
    again = [it for promoted in desk.told for it in promoted.again]
    first = told(desk)
    promoted = await desk.gates.look_again(NAMESPACE.name, again)

    assert again == [Again(namespace=NAMESPACE.name, gate="a")]
    assert len(first) == BATCH_MAX
    assert len({*first, *promoted.due}) == count


async def test_more_of_one_version_than_a_statement_promotes_are_all_told(desk: Desk) -> None:
    count = BATCH_MAX + 20
    smallest = await running(desk, await started(desk), ordered(1))
    for _ in range(count):
        await call(desk, await started(desk), ordered(2))

    await desk.settled(smallest)
    again = [it for promoted in desk.told for it in promoted.again]
    due = told(desk)
    while again:
        promoted = await desk.gates.look_again(NAMESPACE.name, again)
        due += promoted.due
        again = list(promoted.again)

    assert len(set(due)) == count


async def test_more_whose_instant_comes_than_a_statement_looks_at_are_all_told(desk: Desk) -> None:
    assert isinstance(desk.clock, ManualClock)
    at_once = Constraints(run_at=desk.clock.now() + SECOND)
    for _ in range(BATCH_MAX + 20):
        await call(desk, await started(desk), at_once)
    desk.clock.advance(SECOND)

    first = await desk.gates.promote_due([NAMESPACE.name])
    second = await desk.gates.promote_due([NAMESPACE.name])

    assert (len(first.due), len(second.due)) == (BATCH_MAX, 20)
    assert [later.seconds for later in (*first.later, *second.later)] == [0.0]


async def test_a_process_does_not_wait_for_a_gate_that_it_holds_for_good(desk: Desk) -> None:
    mine, other = await started(desk), await started(desk)
    await desk.settled(await running(desk, mine, gates("a", hold=GateHold.PROCESS)))
    await call(desk, other, gates("a"))

    await call(desk, mine, gates("a"))

    assert [task.key for task in await claim_told(desk)] == [mine]


async def test_who_stands_in_line_leaves_it_when_its_process_comes_to_hold_the_gate(
    desk: Desk,
) -> None:
    mine, other = await started(desk), await started(desk)
    holder = await running(desk, other, gates("a"))
    await call(desk, mine, gates("a", hold=GateHold.PROCESS))
    await call(desk, await started(desk), gates("a"))
    await call(desk, mine, gates("a"))
    await desk.settled(holder)
    [first] = await claim_told(desk)

    await desk.settled(first)

    [second] = await claim_told(desk)
    assert (first.key, second.key) == (mine, mine)


async def test_a_gate_that_two_tasks_of_a_process_share_is_held_until_both_have_ended(
    desk: Desk,
) -> None:
    assert isinstance(desk.clock, ManualClock)
    mine, blocker = await started(desk), await running(desk, await started(desk), gates("b"))
    await call(desk, mine, gates("a", "b"))
    step = await running(desk, mine, gates("a"))
    desk.clock.advance(PATIENCE)
    # It is old, and comes next behind the step that holds the gate a.
    await desk.settled(blocker)
    await call(desk, await started(desk), gates("a"))

    await desk.settled(step)

    [task] = await claim_told(desk)
    assert task.key == mine
    assert len((await desk.gates.get(NAMESPACE.name, "a")).line) == 1


async def test_who_waits_for_its_retry_keeps_its_turn_and_who_is_behind_it_no_gate(
    desk: Desk,
) -> None:
    assert isinstance(desk.clock, ManualClock)
    mine, holder = await started(desk), await running(desk, await started(desk), gates("a"))
    old = await call(desk, mine, gates("a"))
    step = await desk.run_task(a_request(mine))
    desk.clock.advance(PATIENCE)
    await desk.settled(holder)
    assert await desk.task_status(mine, old.task_id or 0) is TaskStatus.AVAILABLE
    assert (await desk.gates.get(NAMESPACE.name, "a")).gate.held == 1

    await desk.settled(step, UNREACHABLE)

    assert await desk.task_status(mine, old.task_id or 0) is TaskStatus.WAITING
    assert (await desk.gates.get(NAMESPACE.name, "a")).gate.held == 0
    assert await claim_told(desk) == []
    desk.clock.advance(dt.timedelta(seconds=10))
    [again] = [it.task for it in await desk.claim_due()]
    assert (again.task_id, again.attempt) == (step.task_id, 2)
    await desk.settled(again)
    [task] = await claim_told(desk)
    assert task.task_id == old.task_id


async def test_who_gives_way_lets_those_of_its_process_go_on(desk: Desk) -> None:
    key = await started(desk)
    way = await call(desk, key, gates("a"))
    behind = await call(desk, key)
    assert [task_id for _, task_id in told(desk)] == [way.task_id]

    await desk.set_gate("a", 0)

    [task] = await claim_told(desk)
    assert task.task_id == behind.task_id
    assert await desk.task_status(key, way.task_id or 0) is TaskStatus.WAITING


async def old_behind_a_step(desk: Desk) -> RunningTask:
    """Return the step of a process behind which an old call with a gate is next."""
    assert isinstance(desk.clock, ManualClock)
    key, holder = await started(desk), await running(desk, await started(desk), gates("a"))
    await call(desk, key, gates("a"))
    step = await desk.run_task(a_request(key))
    desk.clock.advance(PATIENCE)
    await desk.settled(holder)
    return step


def instants(desk: Desk) -> set[tuple[ProcessKey, float]]:
    """Take what statements have told to be due later."""
    upcoming = {(it.key, it.seconds) for promoted in desk.told for it in promoted.upcoming}
    desk.told.clear()
    return upcoming


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
async def test_a_timer_that_a_cancelled_call_kept_waiting_is_told_with_its_instant(
    desk: Desk, is_gated: bool
) -> None:
    key = await started(desk)
    if is_gated:
        await call(desk, key, Constraints(run_at=desk.clock.now() + PATIENCE))
    step = await desk.run_task(a_request(key))
    behind = await call(desk, key)
    await desk.settled(step, success(IN_HALF_A_SECOND), continues=False)
    desk.told.clear()

    await desk.processes.cancel(key, behind.task_id or 0)

    assert instants(desk) == {(key, 0.5)}


async def test_a_timer_that_a_retry_with_gates_kept_waiting_is_told_with_its_instant(
    desk: Desk,
) -> None:
    step = await old_behind_a_step(desk)
    await desk.settled(step, success(IN_HALF_A_SECOND))
    [old] = await claim_told(desk)

    await desk.settled(old, UNREACHABLE)

    assert instants(desk) == {(step.key, 0.5)}


async def test_a_timer_that_one_kept_waiting_who_gives_way_is_told_with_its_instant(
    desk: Desk,
) -> None:
    step = await old_behind_a_step(desk)
    await desk.settled(step, success(IN_HALF_A_SECOND), continues=False)
    desk.told.clear()

    await desk.set_gate("a", 0)

    assert instants(desk) == {(step.key, 0.5)}


async def test_who_has_only_reserved_a_gate_gives_way_first(desk: Desk) -> None:
    assert isinstance(desk.clock, ManualClock)
    await desk.set_gate("a", 2)
    at_work = await running(desk, await started(desk), gates("a"))
    first = await running(desk, await started(desk), gates("a"))
    await running(desk, await started(desk), gates("b"))
    await call(desk, await started(desk), gates("a", "b"))
    desk.clock.advance(PATIENCE)
    await desk.settled(first)
    assert [it.is_reserved for it in (await desk.gates.get(NAMESPACE.name, "a")).holders] == [
        False,
        True,
    ]

    await desk.set_gate("a", 1)

    [holder] = (await desk.gates.get(NAMESPACE.name, "a")).holders
    assert holder.task_id == at_work.task_id


async def test_a_repair_replaces_the_timer_that_waits_to_run_again(desk: Desk) -> None:
    key = fresh_key()
    timer = SetTimer(after=NO_TIME, constraints=gates("a"))
    await desk.settled(await desk.start(key), success(timer))
    [task] = await claim_told(desk)
    await desk.settled(task, BROKEN)
    holder = await running(desk, await started(desk), gates("a"))
    await desk.processes.simple_repair(key)
    repair = await desk.run_task(a_request(key, TaskType.REPAIR))
    await desk.settled(repair)
    await desk.settled(holder)

    [again] = await claim_told(desk)
    traced = await desk.processes.trace(key, after=0, limit=100)

    assert [it.status for it in traced if it.task_type is TaskType.TIMEOUT] == [
        TaskStatus.ERROR,
        TaskStatus.CANCELLED,
        TaskStatus.RUNNING,
    ]
    assert again.task_id == traced[-1].task_id


async def test_a_timer_run_again_keeps_its_gates_while_its_process_is_in_error(desk: Desk) -> None:
    key, other = fresh_key(), await started(desk)
    timer = SetTimer(after=NO_TIME, constraints=gates("a"))
    await desk.settled(await desk.start(key), success(timer))
    [task] = await claim_told(desk)
    await desk.settled(task, BROKEN)
    await desk.processes.simple_repair(key)
    [again] = await claim_told(desk)
    repair = await desk.admit(a_request(key, TaskType.REPAIR), run=False)
    await call(desk, other, gates("a"))
    assert repair.task_id is not None

    await desk.processes.cancel(key, repair.task_id)

    assert told(desk) == []
    [holder] = (await desk.gates.get(NAMESPACE.name, "a")).holders
    assert holder.task_id == again.task_id


async def test_the_next_version_is_told_by_its_order_while_its_process_is_locked(
    desk: Desk, database: str, eye: psycopg.Connection[Any]
) -> None:
    # In new sessions: PL/pgSQL looks at a statement when it first comes to it, and a record has no
    # fields then if nothing was assigned to it yet.
    async with running_desks(database, clock=desk.clock) as (new,):
        smaller = await call(new, first := await started(new), ordered(1))
        larger = await call(new, second := await started(new), ordered(2))
        assert told(new) == [(first, smaller.task_id)]
        with eye.transaction():
            eye.execute(
                "SELECT FROM progressor.processes WHERE process_id = %s FOR NO KEY UPDATE",
                (second.process_id,),
            )
            await new.processes.cancel(first, smaller.task_id or 0)
        again = [it for promoted in new.told for it in promoted.again]
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
    desk: Desk, eye: psycopg.Connection[Any], lock: str
) -> None:
    busy = await started(desk)
    holder = await running(desk, await started(desk), gates("b"))
    await call(desk, busy, gates("a", "b", order=Order("o", Version((2,)))))
    # By now it would have to wait for its order, or for its process.
    await call(desk, await started(desk), gates("c", order=Order("o", Version((1,)))))
    smaller = await claim_told(desk)
    await desk.run_task(a_request(busy))
    before = eye.execute("SELECT * FROM progressor.gate_lines").fetchall()

    with eye.transaction():
        eye.execute(lock.encode())
        await desk.settled(holder)
        seen = eye.execute("SELECT * FROM progressor.gate_lines").fetchall()
    again = [it for promoted in desk.told for it in promoted.again]

    assert seen == before
    assert again == [Again(namespace=NAMESPACE.name, gate="b")]
    await desk.gates.look_again(NAMESPACE.name, again)
    assert len(smaller) == 1
