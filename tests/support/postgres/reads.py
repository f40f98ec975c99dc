"""What a piece of work reads: rows by sequential scans and by index, pages of indexes; per table.

PostgreSQL counts them itself; pg_stat_xact_user_tables has what this transaction has not told the
world yet. The work is undone afterwards, so that every measurement finds the same tables.

Pages show what rows do not: an index that is read from end to end for one row, or skipped through.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, LiteralString, cast

import psycopg

from progressor.clock import Clock
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.pools import Connection
from tests.support.clock import ManualClock
from tests.support.storage.store import Store, create_namespace, lent, store

REPLICA = 1
FIRST_SCHEDULED_TASK = 2_000_000_000
OVERDUE_COUNT = 1000

_COUNTERS: LiteralString = """
    SELECT relname, seq_tup_read, coalesce(idx_tup_fetch, 0)
    FROM pg_stat_xact_user_tables
    WHERE schemaname = 'progressor'"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    sequential: int
    by_index: int
    index_pages: int = 0


async def reads_of(
    connection: Connection, clock: Clock, work: Callable[[Store], Awaitable[object]]
) -> Mapping[str, Reads]:
    """Do some work of a replica on a connection, undo it, and return what it read."""
    # Some look at what the clock of PostgreSQL costs.
    worker = store(lent(connection), clock=cast("ManualClock", clock), replica_id=REPLICA)
    pages_before = await _pages(connection)
    async with connection.transaction(force_rollback=True):
        before = await _counters(connection)
        await work(worker)
        after = await _counters(connection)
    pages = await _pages(connection)
    nothing = (0, 0)
    return {
        table: Reads(
            sequential=sequential - before.get(table, nothing)[0],
            by_index=by_index - before.get(table, nothing)[1],
            index_pages=pages.get(table, 0) - pages_before.get(table, 0),
        )
        for table, (sequential, by_index) in after.items()
    }


async def _counters(connection: Connection) -> dict[str, tuple[int, int]]:
    cursor = await connection.execute(_COUNTERS)
    return {row[0]: (row[1], row[2]) for row in await cursor.fetchall()}


async def _pages(connection: Connection) -> dict[str, int]:
    """Return the pages of each table's indexes that were read in this database so far."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    cursor = await connection.execute(
        "SELECT relname, sum(idx_blks_hit + idx_blks_read)::bigint FROM pg_statio_user_indexes"
        " WHERE schemaname = 'progressor' GROUP BY relname"
    )
    return {row[0]: row[1] for row in await cursor.fetchall()}


def seeded_key(number: int) -> ProcessKey:
    """Return the key of a seeded process, from 1; its slot is the seed's, not the hash's."""
    return ProcessKey(number * 7919 % 1024, "orders", f"p{number}")


def scheduled_task(number: int) -> int:
    return FIRST_SCHEDULED_TASK + number


def seed(conninfo: str, *, waiting: int, running: int, tasks: int, analyze: bool) -> None:
    """Fill a database: processes 1 .. `waiting` wait, `running` more run, and tasks have ended.

    Odd ones wait with a call, even ones with a timer; the first OVERDUE_COUNT are due at the start
    of the manual clock, the others a second apart after it.
    """
    create_namespace(conninfo)
    counts = {"total": waiting + running, "waiting": waiting, "each": tasks // (waiting + running)}
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        keep_unvacuumed(connection)
        for statement in _FILLING:
            connection.execute(statement, counts)
        # The next id is behind those of the seed: a timer of a seeded process would meet its own.
        connection.execute(
            "SELECT setval('progressor.task_ids', greatest(nextval('progressor.task_ids'),"
            " %(each)s))",
            counts,
        )
        if analyze:
            connection.execute("ANALYZE")


def keep_unvacuumed(connection: psycopg.Connection[Any]) -> None:
    """Let only the test decide when the planner's statistics are updated."""
    for table in ("processes", "tasks", "schedule", "running", "events", "replies"):
        connection.execute(
            f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
        )


_FILLING: tuple[LiteralString, ...] = (
    """
    CREATE TEMPORARY TABLE filler AS
    SELECT n, (n * 7919 %% 1024)::smallint AS slot, 'p' || n AS process_id
    FROM generate_series(1, %(total)s::integer) n
    ORDER BY 2, 3""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, last_event_id,
         init_task_id)
    SELECT slot, 'orders', process_id, 'running', '2025-01-01'::timestamptz + n * interval '1 s',
        '2025-01-01', 4, 1
    FROM filler""",
    """
    INSERT INTO progressor.schedule
        (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)
    SELECT slot, 'orders', process_id, 2000000000 + n,
        CASE WHEN n %% 2 = 0 THEN 'timeout' ELSE 'call' END::progressor.task_type, 'waiting',
        '2026-01-01'::timestamptz + (n - 1000) * interval '1 s', 1
    FROM filler
    WHERE n <= %(waiting)s""",
    """
    INSERT INTO progressor.running
        (slot, namespace, process_id, task_id, task_type, attempt, token, replica_id, leased_at,
         expires_at)
    SELECT slot, 'orders', process_id, 2000000000 + n, 'call', 1, n, 1, '2026-01-01',
        '2026-02-01'
    FROM filler
    WHERE n > %(waiting)s""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
         finished_at, token)
    SELECT f.slot, 'orders', f.process_id, t.task_id,
        CASE t.task_id WHEN 1 THEN 'init' ELSE 'call' END::progressor.task_type, 'finished', 1,
        '2025-01-01', '2025-01-01', 1
    FROM filler f
    CROSS JOIN generate_series(1, %(each)s::integer) t (task_id)""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
         scheduled_at, first_started_at, token)
    SELECT f.slot, 'orders', f.process_id, 2000000000 + f.n,
        coalesce(s.task_type, 'call'),
        CASE WHEN s.task_id IS NULL THEN 'running' ELSE 'waiting' END::progressor.task_status,
        (s.task_id IS NULL)::integer, '2025-01-01', '2025-01-01', '2025-01-01',
        CASE WHEN s.task_id IS NULL THEN f.n END
    FROM filler f
    LEFT JOIN progressor.schedule s
        ON (s.slot, s.namespace, s.process_id) = (f.slot, 'orders', f.process_id)""",
    """
    INSERT INTO progressor.events
        (slot, namespace, process_id, event_id, task_id, occurred_at, payload)
    SELECT f.slot, 'orders', f.process_id, e.event_id, 1, '2025-01-01', ''
    FROM filler f
    CROSS JOIN generate_series(1, 4) e (event_id)""",
)
