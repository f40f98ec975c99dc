"""What is done to a job reads that job, whatever other jobs there are."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import LiteralString

import psycopg
import pytest
import pytest_asyncio

from progressor.domain.jobs.job import JobFilter
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.pools import Connection
from tests.support.clock import START, ManualClock
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.reads import reads_of
from tests.support.storage.jobs.store import job_store
from tests.support.storage.store import NO_TIME, Store, connect, create_namespace

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES_EACH = 20
TABLES = ("processes", "tasks", "schedule", "running", "jobs", "job_nodes", "orphans")


def leader_key(number: int) -> ProcessKey:
    """Return the key of a seeded leader, from 1; its slot is the seed's, not the hash's.

    Of four, the first runs, the second was cancelled and is upkeep_due, the third runs and is
    overdue, the fourth has failed.
    """
    return ProcessKey(number * 7919 % 1024, "orders", f"l{number}")


def follower_key(number: int, ordinal: int) -> ProcessKey:
    """Return the key of a seeded follower; nodes 1 .. 10 have some, of which half have finished."""
    slot = (number * NODES_EACH + ordinal) * 7919 % 1024
    return ProcessKey(slot, "orders", f"l{number}/{ordinal}")


def seed_jobs(conninfo: str, *, count: int) -> None:
    """Fill a database with jobs, each of nodes 1 .. 5 done, 6 .. 10 at work, the others behind 6.

    Of a failed one, those at work have failed, and the others are skipped.
    """
    create_namespace(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for table in TABLES:
            connection.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
            )
        for statement in _FILLING:
            connection.execute(statement, {"count": count, "each": NODES_EACH})
        connection.execute("ANALYZE")


_FILLING: tuple[LiteralString, ...] = (
    """
    CREATE TEMPORARY TABLE leader AS
    SELECT n, (n * 7919 %% 1024)::smallint AS slot, 'l' || n AS process_id,
        CASE n %% 4 WHEN 2 THEN 'cancelled' WHEN 0 THEN 'failed' ELSE 'running' END
            ::progressor.job_state AS state
    FROM generate_series(1, %(count)s::integer) n""",
    """
    CREATE TEMPORARY TABLE node AS
    SELECT l.*, o AS ordinal, ((l.n * %(each)s + o) * 7919 %% 1024)::smallint AS follower_slot,
        l.process_id || '/' || o AS follower_id,
        CASE
            WHEN o <= 5 THEN 'done'
            WHEN o <= 10 THEN CASE l.state WHEN 'failed' THEN 'failed' ELSE 'running' END
            ELSE CASE l.state
                WHEN 'failed' THEN 'skipped' WHEN 'cancelled' THEN 'cancelled' ELSE 'waiting'
            END
        END::progressor.node_state AS node_state
    FROM leader l
    CROSS JOIN generate_series(1, %(each)s::integer) o""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, detail, created_at, status_changed_at,
         init_task_id, finished_at, led_by)
    SELECT slot, 'orders', process_id,
        CASE state WHEN 'running' THEN 'running' WHEN 'failed' THEN 'error' ELSE 'finished' END
            ::progressor.process_status,
        CASE state WHEN 'failed' THEN 'x' END, '2025-01-01', '2025-01-01', 1,
        CASE state WHEN 'cancelled' THEN '2025-01-01'::timestamptz END, 'engine'
    FROM leader""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, detail, created_at, status_changed_at,
         init_task_id, finished_at, leader_slot, leader_namespace, leader_id, node)
    SELECT follower_slot, 'orders', follower_id,
        CASE node_state WHEN 'done' THEN 'finished' WHEN 'failed' THEN 'error' ELSE 'running' END
            ::progressor.process_status,
        CASE node_state WHEN 'failed' THEN 'x' END, '2025-01-01', '2025-01-01', 1,
        CASE node_state WHEN 'done' THEN '2025-01-01'::timestamptz END, slot, 'orders', process_id,
        ordinal
    FROM node
    WHERE ordinal <= 10""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
         finished_at, token)
    SELECT slot, namespace, process_id, 1, 'init', 'finished', 1, '2025-01-01', '2025-01-01', 1
    FROM progressor.processes""",
    """
    INSERT INTO progressor.jobs
        (slot, namespace, process_id, state, node_count, waiting, running, failed, skipped,
         cancelled, created_at, updated_at, ended_at, deadline_at, upkeep_due_at)
    SELECT slot, 'orders', process_id, state, %(each)s,
        CASE state WHEN 'running' THEN %(each)s - 10 ELSE 0 END,
        CASE state WHEN 'failed' THEN 0 ELSE 5 END, CASE state WHEN 'failed' THEN 5 ELSE 0 END,
        CASE state WHEN 'failed' THEN %(each)s - 10 ELSE 0 END,
        CASE state WHEN 'cancelled' THEN %(each)s - 10 ELSE 0 END,
        '2025-01-01'::timestamptz + n * interval '1 s', '2025-01-01',
        CASE WHEN state <> 'running' THEN '2025-01-01'::timestamptz END,
        CASE n %% 4 WHEN 3 THEN '2025-06-01'::timestamptz END,
        CASE state WHEN 'cancelled' THEN '2025-01-01'::timestamptz END
    FROM leader""",
    """
    INSERT INTO progressor.job_nodes
        (slot, namespace, process_id, ordinal, state, begun, waits_for, skipped_because_of,
         revision, follower_slot, created_at, started_at, ended_at, name, follower_namespace,
         follower_id, predecessors, successors)
    SELECT slot, 'orders', process_id, ordinal, node_state, ordinal <= 10, (ordinal > 10)::integer,
        CASE node_state WHEN 'skipped' THEN 6 END, 1, follower_slot, '2025-01-01',
        CASE WHEN ordinal <= 10 THEN '2025-01-01'::timestamptz END,
        CASE WHEN node_state NOT IN ('waiting', 'running') THEN '2025-01-01'::timestamptz END,
        'n' || ordinal, 'orders', follower_id,
        CASE WHEN ordinal > 10 THEN ARRAY[6] ELSE '{}' END,
        CASE WHEN ordinal = 6 THEN ARRAY(SELECT generate_series(11, %(each)s)) ELSE '{}' END
    FROM node""",
)


FEW, MANY = 40, 2_000
RUNS, CANCELLED, OVERDUE, FAILED = 1, 2, 3, 4
BATCH = 4
PER_JOB = 8 * NODES_EACH
"""Rows that one statement may read per table for each job that it is about."""


async def read(store: Store) -> None:
    assert len((await job_store(store).jobs.read(leader_key(RUNS), payloads=True)).nodes) == 20


async def changes(store: Store) -> None:
    jobs = job_store(store).jobs
    assert (await jobs.changes(leader_key(RUNS), 1))[1] == ()


async def outcomes(store: Store) -> None:
    jobs = job_store(store).jobs
    assert len(await jobs.outcomes(leader_key(RUNS), bytes_max=10_000) or ()) == 5
    assert len(await jobs.inputs(leader_key(RUNS), 11, bytes_max=10_000) or ()) == 0


async def list_jobs(store: Store) -> None:
    listed = await job_store(store).jobs.list("orders", JobFilter(), after=None, limit=BATCH)
    assert len(listed) == BATCH


async def cancel(store: Store) -> None:
    assert (await job_store(store).control.cancel(leader_key(RUNS), "")).counts.cancelled == 10


async def maintain(store: Store) -> None:
    assert (await job_store(store).control.maintain(leader_key(CANCELLED))).stopped == 5


async def find_upkeep_due(store: Store) -> None:
    assert len(await job_store(store).jobs.find_upkeep_due(age=NO_TIME, limit=BATCH)) == BATCH


async def retry(store: Store) -> None:
    _, names = await job_store(store).control.retry(leader_key(FAILED), deadline=None, timeout=None)
    assert len(names) == 5


async def fail_overdue(store: Store) -> None:
    assert len(await job_store(store).control.fail_overdue(limit=BATCH)) == BATCH


async def repair_a_follower(store: Store) -> None:
    await store.recover(follower_key(FAILED, 6))
    assert (await job_store(store).jobs.counts(leader_key(FAILED))).counts.waiting == 10


async def remove_a_follower(store: Store) -> None:
    await store.remove(follower_key(RUNS, 6))
    assert (await job_store(store).jobs.counts(leader_key(RUNS))).counts.skipped == 10


async def remove_a_leader(store: Store) -> None:
    await store.remove(leader_key(RUNS))
    assert await job_store(store).control.stop_orphans() == 5


WORK: tuple[tuple[Callable[[Store], Awaitable[None]], int], ...] = (
    (read, PER_JOB),
    (changes, PER_JOB),
    (outcomes, PER_JOB),
    (list_jobs, PER_JOB),
    (cancel, PER_JOB),
    (maintain, PER_JOB),
    (find_upkeep_due, PER_JOB),
    (retry, 2 * PER_JOB),
    (fail_overdue, BATCH * PER_JOB),
    (repair_a_follower, PER_JOB),
    (remove_a_follower, PER_JOB),
    (remove_a_leader, PER_JOB),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowds(cluster: Cluster) -> AsyncIterator[Mapping[int, Connection]]:
    """Return connections to two databases: in one are few jobs, in the other many."""
    found = {}
    for count in (FEW, MANY):
        conninfo = cluster.create_database()
        migrate(conninfo)
        seed_jobs(conninfo, count=count)
        found[count] = await connect(conninfo)
    yield found
    for connection in found.values():
        await connection.close()


@pytest.mark.parametrize(("work", "rows_max"), WORK, ids=[work.__name__ for work, _ in WORK])
async def test_it_reads_its_own_job(
    crowds: Mapping[int, Connection], work: Callable[[Store], Awaitable[None]], rows_max: int
) -> None:
    clock = ManualClock(START)
    read = {count: await reads_of(crowd, clock, work) for count, crowd in crowds.items()}

    for table in TABLES:
        few, many = read[FEW][table], read[MANY][table]
        assert (table, few.sequential, many.sequential) == (table, 0, 0)
        assert (table, many.by_index) <= (table, rows_max)
        # One more level of an index does not count as a row; what is left is chance.
        assert many.by_index <= 1.3 * few.by_index + BATCH, table


async def test_what_has_not_changed_is_not_read(crowds: Mapping[int, Connection]) -> None:
    read = await reads_of(crowds[MANY], ManualClock(START), changes)

    assert read["job_nodes"].by_index == 0


async def test_a_count_of_what_runs_reads_no_job_that_has_ended(
    crowds: Mapping[int, Connection],
) -> None:
    async def count(store: Store) -> None:
        [queue] = await store.queues.count(["orders"])
        assert queue.job_count > 0

    read = await reads_of(crowds[MANY], ManualClock(START), count)

    for table in TABLES:
        assert (table, read[table].sequential) == (table, 0)
    assert read["jobs"].by_index <= MANY // 2
    assert read["job_nodes"].by_index == 0


async def test_recovery_reads_what_runs_and_is_quiet(crowds: Mapping[int, Connection]) -> None:
    async def recover(store: Store) -> None:
        assert await job_store(store).control.recover() == ()

    read = await reads_of(crowds[MANY], ManualClock(START), recover)

    running = MANY // 2
    for table in TABLES:
        assert (table, read[table].sequential) == (table, 0)
    assert read["jobs"].by_index <= 4 * running
    assert read["job_nodes"].by_index <= (NODES_EACH + 1) * running
    assert read["processes"].by_index <= 6 * running
