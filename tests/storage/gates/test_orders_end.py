"""Orders: a row while there is a task, and a look at some of them at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.gates.constraint import Constraints, Order, Version
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import RunningTask
from progressor.storage.gates import gates as gates_module
from progressor.storage.gates.gates import BEFORE_ALL
from progressor.storage.postgres.rows.effects import Again
from tests.support.clock import ManualClock
from tests.support.storage.doctor.invariants import broken_invariants
from tests.support.storage.store import (
    NAMESPACE,
    Store,
    a_request,
    create_namespace,
    empty,
    fresh_key,
    running_stores,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = Namespace(name="parcels", processor_targets=("127.0.0.1:1",))
Observer = psycopg.Connection[Any]
_WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted"


@pytest_asyncio.fixture(loop_scope="module")
async def store(database: str, observer: Observer) -> AsyncIterator[Store]:
    """Return a replica."""
    empty(observer)
    for namespace in (NAMESPACE, OTHER):
        create_namespace(database, namespace)
    async with running_stores(database, clock=ManualClock()) as (opened,):
        yield opened


async def ordered(store: Store, key: ProcessKey, order: str, version: int) -> int | None:
    """Have a process asked with a version of an order."""
    constraints = Constraints(order=Order(order, Version((version,))))
    admission = await store.admit(a_request(key, constraints=constraints), run=False)
    return admission.task_id


async def started(store: Store, namespace: Namespace = NAMESPACE) -> ProcessKey:
    key = fresh_key(namespace.name)
    await store.started(key)
    return key


async def claimed(store: Store, key: ProcessKey, task_id: int | None) -> RunningTask:
    [found] = await store.claim(key, task_id)
    return found.task


def orders(observer: Observer) -> list[str]:
    rows = observer.execute("SELECT order_key FROM progressor.orders ORDER BY 1").fetchall()
    return [row[0] for row in rows]


async def test_an_order_goes_with_its_last_task(store: Store, observer: Observer) -> None:
    key, other = await started(store), await started(store)
    first = await ordered(store, key, "a", 1)
    second = await ordered(store, other, "a", 2)
    seen = [orders(observer)]
    await store.settled(await claimed(store, key, first))
    seen.append(orders(observer))

    await store.settled(await claimed(store, other, second))

    assert (seen, orders(observer)) == ([["a"], ["a"]], [])


@pytest.mark.parametrize("how", ["cancel", "remove", "halt"])
async def test_an_order_goes_with_a_task_that_never_ran(
    store: Store, observer: Observer, how: str
) -> None:
    keys = [await started(store) for _ in range(2)]
    tasks = [await ordered(store, key, "a", n) for n, key in enumerate(keys)]
    for key, task_id in zip(keys, tasks, strict=True):
        assert task_id is not None
        match how:
            case "cancel":
                await store.cancel(key, task_id)
            case "remove":
                await store.remove(key)
            case _:
                await store.halt(key, "halted")

    assert orders(observer) == []
    assert broken_invariants(observer, now=store.clock.now()) == {}


async def test_the_orders_of_a_namespace_go_with_it(store: Store, observer: Observer) -> None:
    observer.execute("INSERT INTO progressor.orders VALUES ('parcels', 'left'), ('orders', 'kept')")

    await store.namespaces.delete(OTHER.name)

    assert orders(observer) == ["kept"]


async def test_who_comes_to_an_order_that_is_just_deleted_makes_it_anew(
    store: Store, observer: Observer, database: str
) -> None:
    key = await started(store)
    observer.execute("INSERT INTO progressor.orders VALUES ('orders', 'a')")
    with psycopg.connect(database) as deleter:
        deleter.execute("SELECT FROM progressor.orders FOR NO KEY UPDATE")
        coming = asyncio.ensure_future(ordered(store, key, "a", 1))
        async with asyncio.timeout(30):
            while not observer.execute(_WAITING).fetchall():  # noqa: ASYNC110  PostgreSQL sends no notification
                await asyncio.sleep(0.005)
        deleter.execute("DELETE FROM progressor.orders")
        deleter.commit()

    assert await coming is not None
    assert orders(observer) == ["a"]


async def missed(store: Store, observer: Observer, *names: str) -> set[Again]:
    """Return orders of which the scan has to find that a task waits for no other any more."""
    for name in names:
        key = await started(store)
        await ordered(store, key, name, 1)
        other = await started(store)
        await ordered(store, other, name, 2)
        # As a replica that dies before it has looked: the task is not gone, but as if it were.
        observer.execute(
            "DELETE FROM progressor.gated WHERE order_key = %s AND order_version = '{1}'", [name]
        )
    return {Again(namespace=NAMESPACE.name, order_key=name) for name in names}


async def test_all_orders_are_looked_at_in_turn(
    store: Store, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates_module, "IDLE_WINDOW", 3)
    key = await started(store)
    for number in range(8):
        await ordered(store, key, f"kept-{number}", 1)
    expected = await missed(store, observer, "a", "kept-5-b", "z")

    found, windows, until = set[Again](), 0, BEFORE_ALL
    while windows == 0 or until != BEFORE_ALL:
        idle, until = await store.gates.find_idle([OTHER.name, NAMESPACE.name], until)
        found |= set(idle)
        windows += 1

    assert found == expected
    assert windows == 4


async def test_all_lines_are_looked_at_in_turn(
    store: Store, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates_module, "IDLE_WINDOW", 2)
    for number in range(5):
        for _ in range(2):
            constraints = Constraints(gates={f"g{number}": 1})
            request = a_request(await started(store), constraints=constraints)
            await store.admit(request, run=False)
    observer.execute("UPDATE progressor.gates SET capacity = 2 WHERE gate IN ('g1', 'g4')")

    found, until = [], BEFORE_ALL
    for _ in range(3):
        idle, until = await store.gates.find_idle([NAMESPACE.name], until)
        found.append([each.gate for each in idle])

    assert (found, until) == ([["g1"], [], ["g4"]], BEFORE_ALL)
