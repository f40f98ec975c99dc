"""A process that another session has locked costs the others at most one wait."""

import asyncio
import contextlib
from collections.abc import Iterator

import psycopg
import pytest

from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.locks import find_locked
from progressor.storage.postgres.pools import connection_of
from progressor.storage.processes.claims import Wanted
from progressor.storage.processes.settlements import Written
from tests.support.storage.store import (
    EXPIRES_AFTER,
    NO_TIME,
    STATEMENT_TIMEOUT,
    Store,
    a_request,
    fresh_key,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextlib.contextmanager
def holding(database: str, *keys: ProcessKey) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Hold processes locked, as a session that is idle in a transaction does."""
    with psycopg.connect(database) as holder:
        for key in keys:
            holder.execute(
                "SELECT FROM progressor.processes WHERE (slot, namespace, process_id)"
                " = (%s, %s, %s) FOR UPDATE",
                [key.slot, key.namespace, key.process_id],
            )
        yield holder
        holder.rollback()


async def test_who_holds_a_process_is_found_without_waiting(store: Store, database: str) -> None:
    keys = [fresh_key() for _ in range(3)]
    for key in keys:
        await store.started(key)
    find = find_locked(Functions(), STATEMENT_TIMEOUT)
    with holding(database, keys[1]):
        async with connection_of(store.pool) as connection:
            held = await find(connection, [*keys, fresh_key()])

    async with connection_of(store.pool) as connection:
        assert await find(connection, keys) == frozenset()
    assert held == {keys[1]}


async def test_calls_of_other_processes_are_admitted(store: Store, database: str) -> None:
    locked, others = fresh_key(), [fresh_key() for _ in range(20)]
    for key in (locked, *others):
        await store.started(key)
    with holding(database, locked) as holder:
        waiting = asyncio.ensure_future(store.admit(a_request(locked)))
        async with asyncio.TaskGroup() as group:
            admitted = [group.create_task(store.admit(a_request(key))) for key in others]
        was_done = waiting.done()
        holder.rollback()

    assert all(task.result().running is not None for task in admitted)
    assert not was_done
    assert (await waiting).running is not None


async def test_a_call_of_a_locked_process_keeps_its_place(store: Store, database: str) -> None:
    key = fresh_key()
    await store.started(key)
    with holding(database, key) as holder:
        first = asyncio.ensure_future(store.admit(a_request(key, args=b"1")))
        await store.started(fresh_key())
        second = asyncio.ensure_future(store.admit(a_request(key, args=b"2")))
        await store.started(fresh_key())
        holder.rollback()

    assert (await first).running is not None
    assert (await second).running is None


async def test_steps_of_other_processes_are_settled(store: Store, database: str) -> None:
    locked, *others = [await store.start(fresh_key()) for _ in range(20)]
    with holding(database, locked.process.key) as holder:
        waiting = asyncio.ensure_future(store.settled(locked))
        async with asyncio.TaskGroup() as group:
            settled = [group.create_task(store.settled(task)) for task in others]
        was_done = waiting.done()
        holder.rollback()

    assert all(isinstance(task.result(), Written) for task in settled)
    assert not was_done
    assert isinstance(await waiting, Written)


async def test_timers_of_other_processes_are_claimed(store: Store, database: str) -> None:
    timers = [await store.timed(NO_TIME) for _ in range(3)]
    wanted = [Wanted(key=key, task_id=task, expires_after=EXPIRES_AFTER) for key, task in timers]
    with holding(database, timers[1][0]):
        claimed = await store.claims.claim_tasks(store.pool, wanted)

    assert {each.task.task_id for each in claimed} == {timers[0][1], timers[2][1]}
    assert [each.task.task_id for each in await store.claim_due()] == [timers[1][1]]


async def test_a_backlog_is_claimed_but_for_what_is_locked(store: Store, database: str) -> None:
    timers = [await store.timed(NO_TIME) for _ in range(3)]
    with holding(database, timers[0][0]):
        claimed = await store.claim_due(wait=True)

    assert {each.task.task_id for each in claimed} == {timers[1][1], timers[2][1]}
