"""What is looked for by PostgreSQL's own clock is found by an index, not by asking row by row.

Other tests pin the clock, which makes a constant of what is volatile in production.
"""

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg
import pytest
import pytest_asyncio

from bench.filling.load import fill
from bench.filling.plan import Plan
from progressor.clock import SystemClock
from progressor.storage.postgres.pools import Connection
from progressor.storage.steps.claims import Room
from tests.support.postgres.reads import Reads, reads_of
from tests.support.storage.store import EXPIRES_AFTER, NO_TIME, Store, connect

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAN = Plan(process_count=4000, timer_count=3000, namespace="orders")
LONG = dt.timedelta(days=3000)
READ_MAX = 3
"""Rows that a search for what is not there may come across."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(database: str) -> AsyncIterator[Connection]:
    """Return a session on many timers, finished processes and replies, none old enough."""
    fill(database, PLAN)
    with psycopg.connect(database, autocommit=True) as observer:
        observer.execute(
            """
            INSERT INTO progressor.replies
                (slot, namespace, process_id, task_id, task_type, status, created_at)
            SELECT 1, 'orders', 'p', n, 'call', 'finished', now() FROM generate_series(1, 3000) n"""
        )
        observer.execute("ANALYZE progressor.replies")
    async with await connect(database) as opened:
        yield opened


async def find_overdue(store: Store) -> object:
    return await store.claims.find_overdue(store.pool, ["orders", "void"], overdue=NO_TIME)


async def claim_due(store: Store) -> object:
    room = Room(namespace="orders", limit=100, expires_after=EXPIRES_AFTER)
    return await store.claims.claim_due(store.pool, [room], overdue=NO_TIME, wait=True)


async def find_upcoming(store: Store) -> object:
    room = Room(namespace="orders", limit=100, expires_after=EXPIRES_AFTER)
    return await store.claims.find_upcoming(
        store.pool, [room], horizon=dt.timedelta(seconds=5), lease_timeout=dt.timedelta(seconds=5)
    )


async def delete_finished(store: Store) -> object:
    return await store.retention.delete_finished("orders", age=LONG, limit=100)


async def delete_old_replies(store: Store) -> object:
    return await store.retention.delete_old_replies(age=LONG, limit=100)


async def count_waiting(store: Store) -> object:
    """Nothing is due; of the timers ahead it need not find more than one."""
    [queue] = await store.queues.count(["orders"], count_max=1)
    assert (queue.due_count, queue.timer_count) == (0, 1)
    return queue


@pytest.mark.plain_tables
@pytest.mark.parametrize(
    "work",
    [find_overdue, claim_due, find_upcoming, count_waiting, delete_finished, delete_old_replies],
    ids=lambda work: work.__name__,
)
async def test_a_search_in_vain_reads_next_to_nothing(
    connection: Connection, work: Callable[[Store], Awaitable[object]]
) -> None:
    found = await reads_of(connection, SystemClock(), work)

    none = Reads(sequential=0, by_index=0)
    for table in ("schedule", "processes", "tasks", "replies"):
        reads = found.get(table, none)
        assert reads.sequential + reads.by_index <= READ_MAX, table
