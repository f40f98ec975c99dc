"""Many jobs, written by hand: what a statement about one of them must not read."""

from typing import LiteralString

import psycopg

from progressor.domain.processes.process import ProcessKey
from tests.support.storage.store import create_namespace

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
