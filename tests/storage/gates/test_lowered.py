"""A lower capacity is in force at once; holders who do not run yet give way later, a few a time."""

import datetime as dt
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.gates.constraint import Constraints
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.storage.gates import gates as gates_module
from progressor.storage.gates.gates import BEFORE_ALL, EVICTED_MAX, LEFT_ALONE, Evicted
from progressor.storage.postgres.rows.effects import Effects, LoweredGate
from tests.support.postgres.reads import reads_of
from tests.support.storage.store import (
    NAMESPACE,
    Store,
    a_request,
    connect,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATE = LoweredGate(NAMESPACE.name, "x")
SECOND = dt.timedelta(seconds=1)
Observer = psycopg.Connection[Any]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send three back at once, of five that are looked at."""
    monkeypatch.setattr(gates_module, "EVICTED_MAX", 3)
    monkeypatch.setattr(gates_module, "EVICTION_WINDOW", 5)


async def holders(store: Store, count: int, *others: str) -> list[ProcessKey]:
    """Return processes whose init tasks are available through the gate, the oldest first."""
    await store.set_capacity(GATE.gate, 2000)
    return [await wanting(store, *others) for _ in range(count)]


async def wanting(store: Store, *others: str) -> ProcessKey:
    """Return a process whose init task wants the gate."""
    store.clock.advance(SECOND)
    key = fresh_key()
    constraints = Constraints(gates={"x": None} | dict.fromkeys(others, 100))
    await store.admit(a_request(key, TaskType.INIT, constraints=constraints), run=False)
    return key


async def lower(store: Store, capacity: int) -> None:
    store.reported.clear()
    await store.set_capacity(GATE.gate, capacity)


async def sent_back(store: Store) -> list[int]:
    """Send back all who have to go, and return how many went in each transaction."""
    counts = []
    while True:
        evicted = await store.evict_holders(GATE)
        counts.append(evicted.count)
        if evicted.is_done:
            return counts


async def held_by(store: Store) -> list[str]:
    return [it.process_id for it in (await store.gates.get(GATE.namespace, GATE.gate)).holders]


async def run(store: Store, key: ProcessKey) -> RunningTask:
    """Lease the init task of a process."""
    [traced] = await store.processes.trace(key, after=0, limit=1)
    [claimed] = await store.claim(key, traced.task_id)
    return claimed.task


def ids(keys: list[ProcessKey]) -> list[str]:
    return [key.process_id for key in keys]


async def test_a_lower_capacity_is_in_force_before_anybody_gives_way(store: Store) -> None:
    keys = await holders(store, 5)

    await lower(store, 2)

    gate = (await store.gates.get(GATE.namespace, GATE.gate)).gate
    assert (gate.capacity, gate.held) == (2, 5)
    assert store.reported == [Effects(lowered=(GATE,))]
    assert await store.gates.find_idle([NAMESPACE.name]) == ((), BEFORE_ALL)
    last = await wanting(store)
    assert last.process_id not in await held_by(store)
    await sent_back(store)
    assert await held_by(store) == ids(keys[:2])


async def test_to_lower_a_capacity_waits_for_no_holder(store: Store, database: str) -> None:
    keys = await holders(store, 3)
    with psycopg.connect(database) as other:
        other.execute(
            "SELECT FROM progressor.processes WHERE process_id = ANY (%s) FOR UPDATE", [ids(keys)]
        )

        await lower(store, 0)
        evicted = await store.evict_holders(GATE)
        other.rollback()

    assert evicted == Evicted(0, is_done=False)
    assert await sent_back(store) == [3]


@pytest.mark.usefixtures("few")
async def test_the_youngest_give_way_a_few_in_a_transaction(store: Store) -> None:
    keys = await holders(store, 10)
    await lower(store, 2)

    assert await sent_back(store) == [3, 3, 2]
    assert await held_by(store) == ids(keys[:2])


@pytest.mark.usefixtures("few")
async def test_who_runs_keeps_the_gate_however_many_came_last(store: Store) -> None:
    keys = await holders(store, 14)
    at_work = [await run(store, key) for key in keys[4:13]]
    await lower(store, 1)

    assert await sent_back(store) == [1, 0, 3, 1]
    assert await held_by(store) == ids(keys[4:13])
    for task in at_work:
        await store.settled(task)
    assert await held_by(store) == ids(keys[:1])


@pytest.mark.usefixtures("few")
async def test_locked_holders_stay_and_the_others_give_way(store: Store, database: str) -> None:
    keys = await holders(store, 5)
    await lower(store, 0)
    with psycopg.connect(database) as other:
        other.execute(
            "SELECT FROM progressor.processes WHERE process_id = %s FOR UPDATE",
            [keys[4].process_id],
        )
        counts = [(await store.evict_holders(GATE)).count for _ in range(3)]
        other.rollback()

    assert counts == [2, 2, 0]
    assert await sent_back(store) == [1]
    assert await held_by(store) == []


@pytest.mark.usefixtures("few")
async def test_tasks_behind_do_not_pass_before_those_sent_back(store: Store) -> None:
    keys = await holders(store, 7, "y")
    behind = [await wanting(store, "y") for _ in range(2)]
    await lower(store, 2)
    behind.append(await wanting(store, "y"))
    assert (await store.evict_holders(GATE)).count == 3

    # In the middle of it there is room again, for two more than hold the gate.
    await store.set_capacity(GATE.gate, 9)

    assert await sent_back(store) == [0]
    assert await held_by(store) == ids(keys + behind[:2])


@pytest.mark.usefixtures("few")
async def test_another_replica_goes_on_where_one_has_died(store: Store, other: Store) -> None:
    names = [NAMESPACE.name]
    keys = await holders(store, 8)
    await lower(store, 1)
    await store.evict_holders(GATE)
    store.clock.advance(LEFT_ALONE - dt.timedelta(microseconds=1))
    assert await other.gates.find_lowered(names) == ()
    store.clock.advance(dt.timedelta(microseconds=1))
    assert await other.gates.find_lowered(["elsewhere"]) == ()

    assert await other.gates.find_lowered(names) == (GATE,)
    assert await sent_back(other) == [3, 1]
    store.clock.advance(LEFT_ALONE)
    assert await other.gates.find_lowered(names) == ()
    assert await held_by(other) == ids(keys[:1])


async def test_no_holder_gives_way_once_the_capacity_suffices_again(store: Store) -> None:
    keys = await holders(store, 3)
    await lower(store, 2)
    first = await run(store, keys[0])
    await store.settled(first)

    assert await sent_back(store) == [0]
    assert await store.evict_holders(GATE) == Evicted(0, is_done=True)
    assert await store.evict_holders(LoweredGate("orders", "nowhere")) == Evicted(0, is_done=True)
    assert await held_by(store) == ids(keys[1:])


async def test_who_gives_way_has_its_other_tasks_go_on_and_is_told_nothing(store: Store) -> None:
    """One that is all that its process has, one with a call behind it, one with another gate."""
    alone, crowded = await holders(store, 2)
    [other] = await holders(store, 1, "y")
    behind = (await store.admit(a_request(crowded), run=False)).task_id
    await store.set_capacity("z", 1)
    z = Constraints(gates={"z": None})
    await store.admit(a_request(alone, constraints=z), run=False)
    await lower(store, 0)

    assert await sent_back(store) == [3]
    assert [each for told in store.reported for each in told.due] == []
    assert (await store.gates.get("orders", "y")).gate.held == 0
    await store.set_capacity(GATE.gate, 3)
    due = {key for told in store.reported for key, _ in told.due}
    assert due == {alone, crowded, other}
    assert behind is not None


@pytest.mark.usefixtures("few")
async def test_what_a_transaction_costs_does_not_grow_with_the_holders(
    store: Store, database: str, observer: Observer
) -> None:
    found = []
    async with await connect(database) as connection:
        for count in (50, 300):
            await holders(store, count)
            await lower(store, 0)
            observer.execute("ANALYZE")
            reads = await reads_of(connection, store.clock, lambda it: it.evict_holders(GATE))
            found.append(reads["gate_holders"].by_index + reads["schedule"].by_index)
            await sent_back(store)

    assert found[1] <= 1.2 * found[0]


async def test_holders_that_are_alone_in_their_processes_give_way_at_once(
    store: Store, database: str, observer: Observer
) -> None:
    await holders(store, 200)
    await lower(store, 0)
    observer.execute("ANALYZE")
    async with await connect(database) as connection:
        reads = await reads_of(connection, store.clock, lambda it: it.evict_holders(GATE))

    assert reads["processes"].by_index <= 2 * EVICTED_MAX


async def test_a_gate_that_stays_locked_is_reported_as_locked(store: Store, database: str) -> None:
    await holders(store, 2)
    await lower(store, 0)
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM progressor.gates WHERE gate = 'x' FOR UPDATE")

        with pytest.raises(errors.StorageLockedError):
            await store.evict_holders(GATE)
        other.rollback()

    assert await sent_back(store) == [2]
