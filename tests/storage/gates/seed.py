"""Ten thousand tasks that wait for gates, written as the engine would have, but at once."""

from typing import LiteralString

import psycopg

from progressor.domain.processes.process import ProcessKey
from tests.support.storage.store import NAMESPACE, create_namespace

FIRST_TASK = 1_000_000_000
GATES_COUNT = 100
IDLE_COUNT = 1000
LATER_COUNT = 1000

TABLES = (
    "processes", "tasks", "schedule", "running", "gated", "gates", "gate_holders", "gate_queues",
    "orders",
)  # fmt: skip


def holder_key(number: int) -> ProcessKey:
    """Return the process that holds a gate and runs, 1 .. GATES_COUNT; its token is the number."""
    return ProcessKey(number, NAMESPACE.name, f"h{number}")


def waiting_key(number: int) -> ProcessKey:
    """Return a process with a task in line, from 1."""
    return ProcessKey(number % 1024, NAMESPACE.name, f"w{number}")


def waiting_task(number: int) -> int:
    return FIRST_TASK + 1000 + number


def idle_key(number: int) -> ProcessKey:
    """Return a process that has nothing to do, 1 .. IDLE_COUNT."""
    return ProcessKey(number % 1024, NAMESPACE.name, f"i{number}")


def gate(number: int) -> str:
    """Return the gate that holder `number` has: the gates' order is that of their numbers."""
    return f"g{number:03}"


def seed_gates(conninfo: str, *, waiting: int) -> None:
    """Fill a database: GATES_COUNT mutexes, all held, and `waiting` tasks in line, half for two.

    LATER_COUNT more wait for an instant, one after the other from a second after the start of the
    manual clock on; and each of them has an order of its own.
    """
    create_namespace(conninfo)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for table in TABLES:
            connection.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
            )
        counts = {
            "waiting": waiting,
            "gates": GATES_COUNT,
            "idle": IDLE_COUNT,
            "later": LATER_COUNT,
            "first": FIRST_TASK,
        }
        for statement in _FILLING:
            connection.execute(statement, counts)
        connection.execute("SELECT setval('progressor.task_ids', 2000000000)")
        connection.execute("SELECT setval('progressor.lease_tokens', 1000000)")
        connection.execute("ANALYZE")


_FILLING: tuple[LiteralString, ...] = (
    """
    CREATE TEMPORARY TABLE filler AS
    SELECT k.kind, n, (n %% 1024)::smallint AS slot, k.kind || n AS process_id,
        %(first)s::bigint + k.offset + n AS task_id,
        CASE
            WHEN k.kind = 'i' THEN '{}'
            WHEN k.kind = 'w' AND n %% 2 = 0 THEN ARRAY[g.one, g.other]
            ELSE ARRAY[g.one]
        END AS gates
    FROM (VALUES ('h', 0, %(gates)s::integer), ('w', 1000, %(waiting)s), ('i', 100000, %(idle)s),
        ('t', 200000, %(later)s)) AS k (kind, "offset", count)
    CROSS JOIN LATERAL generate_series(1, k.count) n
    CROSS JOIN LATERAL (
        SELECT 'g' || lpad((1 + (n - 1) %% (%(gates)s - 1))::text, 3, '0') AS one,
            'g' || lpad((2 + (n - 1) %% (%(gates)s - 1))::text, 3, '0') AS other
    ) g""",
    # The last gate is never the first of a task.
    "UPDATE filler SET gates = ARRAY['g' || lpad(n::text, 3, '0')] WHERE kind = 'h'",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, init_task_id, is_gated)
    SELECT slot, 'orders', process_id, 'running', '2026-01-01', '2026-01-01', 0, kind <> 'i'
    FROM filler""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at, token,
         started_at, constraints)
    SELECT slot, 'orders', process_id, task_id, 'call',
        CASE WHEN kind = 'h' THEN 'running' ELSE 'waiting' END::progressor.task_status,
        (kind = 'h')::integer, '2026-01-01', CASE WHEN kind = 'h' THEN n END,
        CASE WHEN kind = 'h' THEN '2026-01-01'::timestamptz END, '{}'
    FROM filler
    WHERE kind <> 'i'""",
    """
    INSERT INTO progressor.gates (namespace, gate, capacity, held, created_at, updated_at)
    SELECT 'orders', gates[1], 1, 1, '2026-01-01', '2026-01-01'
    FROM filler
    WHERE kind = 'h'""",
    """
    INSERT INTO progressor.gate_holders
        (slot, namespace, process_id, gate, task_id, hold, held_at)
    SELECT slot, 'orders', process_id, gates[1], task_id, 'task', '2026-01-01'
    FROM filler
    WHERE kind = 'h'""",
    """
    INSERT INTO progressor.running
        (slot, namespace, process_id, task_id, task_type, attempt, token, replica_id, leased_at,
         expires_at)
    SELECT slot, 'orders', process_id, task_id, 'call', 1, n, 1, '2026-01-01', '2026-02-01'
    FROM filler
    WHERE kind = 'h'""",
    """
    INSERT INTO progressor.gated
        (slot, namespace, process_id, task_id, task_type, state, state_since, run_at, ready_at,
         priority, order_key, order_version, gates, hold, queue, replica_id)
    SELECT f.slot, 'orders', f.process_id, f.task_id, 'call', s.state::progressor.gated_state,
        '2026-01-01', r.run_at, coalesce(r.run_at, '2026-01-01'), 1 + f.n %% 5,
        CASE WHEN f.kind = 't' THEN 'o' || f.n END,
        CASE WHEN f.kind = 't' THEN ARRAY[1] END, f.gates, 'task',
        CASE WHEN f.kind = 'w' THEN f.gates::text END, 1
    FROM filler f
    CROSS JOIN LATERAL (
        SELECT CASE WHEN f.kind = 't' THEN '2026-01-01'::timestamptz + f.n * interval '1 s' END
            AS run_at
    ) r
    CROSS JOIN LATERAL (
        SELECT CASE f.kind WHEN 'h' THEN 'available' WHEN 'w' THEN 'gates' ELSE 'time' END AS state
    ) s
    WHERE f.kind <> 'i'""",
    """
    INSERT INTO progressor.orders
    SELECT namespace, order_key FROM progressor.gated WHERE order_key IS NOT NULL""",
    """
    INSERT INTO progressor.gate_queues
        (namespace, queue, gates, waits_on, head_priority, head_task_id, oldest_at,
         oldest_id)
    SELECT DISTINCT ON (g.queue) 'orders', g.queue, g.gates, g.gates[1], g.priority, g.task_id,
        g.ready_at,
        first_value(g.task_id) OVER (PARTITION BY g.queue ORDER BY g.ready_at, g.task_id)
    FROM progressor.gated g
    WHERE g.queue IS NOT NULL
    ORDER BY g.queue, g.priority, g.task_id""",
)
