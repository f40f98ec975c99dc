"""What it costs to tell why tasks with constraints wait: rows read, however many others wait.

20,000 tasks wait for one gate, in one line and in 1,000 lines that want another gate besides; for
each line there is a holder of that other gate. And they are in one order.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.processes.event import NO_HISTORY
from progressor.domain.processes.process import ProcessKey
from progressor.domain.views.wait import BehindVersion, GatesFull, TimerNotDue, Wait
from progressor.storage.postgres.pools import Connection
from progressor.storage.processes.processes import Wanted
from tests.support.clock import ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import Reads, reads_of, seeded_key
from tests.support.storage.store import Store, connect, create_namespace

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.plain_tables]

COUNT, LINES, BATCH = 20_000, 1000, 32
COUNTED = 1000
"""Places in a line that are reported."""

TASK = 3_000_000_000
NUMBERS = range(10_001, 10_001 + BATCH)
GATED = ("gated", "gates", "gate_holders", "gate_queues")


def scanned(reads: Mapping[str, Reads]) -> dict[str, Reads]:
    """Return the tables that were read as a whole, but for the one that does not grow."""
    return {name: it for name, it in reads.items() if it.sequential and name != "namespaces"}


def seed(conninfo: str, *, analyze: bool) -> None:
    """Fill a database: odd processes wait in one line, even ones in many, with orders."""
    create_namespace(conninfo)
    counts = {"count": COUNT, "lines": LINES, "task": TASK}
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in _FILLING:
            connection.execute(statement, counts)
        if analyze:
            connection.execute("ANALYZE")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def large(database: str) -> AsyncIterator[Connection]:
    """Return a session that plans for the first time, on many rows that the planner knows of."""
    seed(database, analyze=True)
    async with await connect(database) as connection:
        yield connection


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grown(cluster: Cluster) -> AsyncIterator[Connection]:
    """Return a session that planned on empty tables, which have not been analysed since."""
    conninfo = cluster.create_database("progressor_template")
    create_namespace(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as observer:
        for table in ("processes", "tasks", "schedule", "running", *GATED):
            observer.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
            )
    async with await connect(conninfo) as connection:
        for work in (get_one, first_waits_of_many):
            with contextlib.suppress(AssertionError):
                await reads_of(connection, ManualClock(), work)
        seed(conninfo, analyze=False)
        yield connection
    cluster.drop_database(conninfo)


@pytest.fixture(params=["large", "grown"])
def connection(request: pytest.FixtureRequest) -> Connection:
    found: Connection = request.getfixturevalue(request.param)
    return found


async def get_one(store: Store) -> Any:
    return await get(store, seeded_key(NUMBERS[0]))


async def get(store: Store, key: ProcessKey) -> tuple[Wait, ...]:
    """Return what Get tells, by a connection that the test lends."""
    async with store.pool.connection() as lent:
        [row] = await store.processes._reads._read(lent, [Wanted(key, NO_HISTORY)])
    assert row is not None
    return (await store.processes._view(key, row)).waits


async def first_waits_of_many(store: Store) -> Any:
    keys = [seeded_key(number) for number in NUMBERS]
    return await store.processes.first_waits(keys)


async def test_one_task_is_told_without_reading_the_others(connection: Connection) -> None:
    reads = await reads_of(connection, ManualClock(), get_one)

    assert scanned(reads) == {}
    # The line of the gate, up to where places are reported; each of the others but a few rows.
    assert reads["gated"].by_index <= 2 * COUNTED + 20
    assert reads["gate_queues"].by_index <= 2 * COUNTED + 20
    others = {table: it.by_index for table, it in reads.items() if table not in GATED[::3]}
    assert max(others.values()) <= 20, others


async def test_a_gate_is_read_once_for_all_who_wait_for_it(connection: Connection) -> None:
    reads = await reads_of(connection, ManualClock(), first_waits_of_many)

    assert scanned(reads) == {}
    assert reads["gated"].by_index <= 2 * COUNTED + 12 * BATCH
    assert reads["gate_queues"].by_index <= 2 * COUNTED + 12 * BATCH
    others = {table: it.by_index for table, it in reads.items() if table not in GATED[::3]}
    assert max(others.values()) <= 20 * BATCH, others


async def test_what_is_told_is_right(large: Connection) -> None:
    found: dict[int, Any] = {}

    async def ask(store: Store) -> None:
        for number in (1, 2, COUNT - 1):
            [found[number]] = await get(store, seeded_key(number))

    await reads_of(large, ManualClock(), ask)

    first, second, last = (
        next(it for it in wait.causes if isinstance(it, GatesFull)).gates for wait in found.values()
    )
    assert [(it.gate, it.position, it.waiting_count) for it in first] == [("g", 1, COUNTED)]
    assert [(it.gate, it.position) for it in second] == [("f3", 0), ("g", 2)]
    assert [(it.gate, it.position) for it in last] == [("g", COUNTED)]
    behind = [next(it for it in found[2].causes if isinstance(it, BehindVersion))]
    assert behind[0].order.task_id == TASK + 1


async def test_a_process_without_constraints_reads_nothing_of_gates(large: Connection) -> None:
    key = seeded_key(COUNT + 1)

    async def ask(store: Store) -> None:
        [wait] = await get(store, key)
        firsts = await store.processes.first_waits([key])
        assert firsts == {key: wait}
        assert isinstance(wait.cause, TimerNotDue)
        await store.processes.trace(key, after=0, limit=10)

    reads = await reads_of(large, ManualClock(), ask)

    assert {table: reads[table] for table in GATED if reads[table].by_index} == {}
    assert scanned(reads) == {}


_FILLING = (
    """
    CREATE TEMPORARY TABLE filler AS
    SELECT n, (n * 7919 %% 1024)::smallint AS slot, 'p' || n AS process_id,
        CASE WHEN n %% 2 = 1 THEN ARRAY['g'] ELSE ARRAY['f' || n %% %(lines)s::integer + 1, 'g']
        END AS gates
    FROM generate_series(1, %(count)s::integer) n""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, init_task_id, is_gated)
    SELECT slot, 'orders', process_id, 'init', '2025-01-01', '2025-01-01', %(task)s + n, true
    FROM filler""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, created_at, constraints)
    SELECT slot, 'orders', process_id, %(task)s + n, 'init', 'waiting', '2025-01-01', '{}'
    FROM filler""",
    """
    INSERT INTO progressor.gated
        (slot, namespace, process_id, task_id, task_type, state, state_since, ready_at, priority,
         order_key, order_version, gates, hold, queue, replica_id)
    SELECT slot, 'orders', process_id, %(task)s + n, 'init', 'gates', '2025-01-01',
        '2026-01-01'::timestamptz - (n %% 20 > 18)::integer * interval '1 h', 3, 'o',
        CASE WHEN n %% 2 = 1 THEN ARRAY[1] ELSE ARRAY[2] END, gates, 'task', gates::text, 1
    FROM filler
    WHERE n > 2""",
    """
    INSERT INTO progressor.gated
        (slot, namespace, process_id, task_id, task_type, state, state_since, ready_at, priority,
         order_key, order_version, gates, hold, queue, replica_id)
    SELECT slot, 'orders', process_id, %(task)s + n, 'init', 'gates', '2025-01-01',
        '2024-01-01'::timestamptz + n * interval '1 s', 3, 'o', ARRAY[n], gates, 'task',
        gates::text, 1
    FROM filler
    WHERE n <= 2""",
    """
    INSERT INTO progressor.gate_queues
        (namespace, queue, gates, waits_on, head_priority, head_task_id, oldest_at,
         oldest_id)
    SELECT 'orders', queue, gates, 'g', 3, min(task_id), min(ready_at), min(task_id)
    FROM progressor.gated
    GROUP BY queue, gates""",
    """
    INSERT INTO progressor.gates (namespace, gate, capacity, held, created_at, updated_at)
    SELECT DISTINCT 'orders', gate, 1, 1, '2025-01-01'::timestamptz, '2025-01-01'::timestamptz
    FROM filler, unnest(gates) AS gate""",
    """
    INSERT INTO progressor.gate_holders
        (slot, namespace, process_id, gate, task_id, hold, held_at)
    SELECT 1, 'orders', 'holder of ' || gate, gate, 1, 'task', '2025-01-01'
    FROM progressor.gates""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, init_task_id)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'p' || n, 'running', '2025-01-01',
        '2025-01-01', 1
    FROM generate_series(%(count)s::integer + 1, %(count)s::integer + 500) n""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, created_at, scheduled_at)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'p' || n, %(task)s + n, 'timeout', 'waiting',
        '2025-01-01', '2027-01-01'
    FROM generate_series(%(count)s::integer + 1, %(count)s::integer + 500) n""",
    """
    INSERT INTO progressor.schedule
        (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)
    SELECT slot, namespace, process_id, task_id, task_type, 'waiting', scheduled_at, 1
    FROM progressor.tasks
    WHERE task_type = 'timeout'""",
)
