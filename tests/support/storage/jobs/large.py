"""Large jobs in a database, written by hand: with nodes at work, and more that wait for them.

Each `Shape` says what the first nodes of a job, which run, are to the others. What a follower or
leader has in hand is leased.
"""

import dataclasses
import enum
from typing import Any, LiteralString

import psycopg

from progressor.domain.processes.process import Leadership, Part, ProcessKey
from tests.support.postgres.reads import keep_unvacuumed

_FIRST_TASK = 3_000_000_000
_NODES_MAX = 1_000_000


class Shape(enum.StrEnum):
    """What waits for the nodes that run; all others are done."""

    PAIRS = "pairs"  # for each one other node
    FAN_IN = "fan_in"  # for all of them, and those that are done, the last node
    HUB = "hub"  # for all of them one, and for that one all others
    WIDE = "wide"  # none
    WINDOW = "window"  # all others, for room: they are ready
    GATED = "gated"  # the same, and they have constraints


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LargeJob:
    """A job: its number, from 1, is part of all its keys. A node's is 1 .. n, of the leader 0."""

    number: int
    shape: Shape
    node_count: int
    running_count: int

    @property
    def leader(self) -> ProcessKey:
        """Return the key of its leader; its slot is the seed's, not the hash's."""
        return ProcessKey(self.number * 7919 % 1024, "orders", f"job{self.number}")

    def part(self, node: int) -> Part:
        if not node:
            return Part(led_by=Leadership.PROCESSOR)
        return Part(leader=self.leader, node=node)

    def key(self, node: int) -> ProcessKey:
        if not node:
            return self.leader
        return ProcessKey((self.number + node) * 7919 % 1024, "orders", f"job{self.number}/n{node}")

    def token(self, node: int) -> int:
        return self.number * _NODES_MAX + node

    def task(self, node: int) -> int:
        return _FIRST_TASK + self.token(node)


def seed_large_jobs(conninfo: str, jobs: tuple[LargeJob, ...], *, others: int) -> None:
    """Write jobs, and so many others of ten nodes that are all done."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        keep_unvacuumed(connection)
        for table in ("jobs", "job_nodes"):
            connection.execute(
                f"ALTER TABLE progressor.{table} SET (autovacuum_enabled = false)".encode()
            )
        for statement in _OTHERS:
            connection.execute(statement, {"others": others})
        for job in jobs:
            _seed_job(connection, job)


def _seed_job(connection: psycopg.Connection[Any], job: LargeJob) -> None:
    values = {
        "number": job.number,
        "slot": job.leader.slot,
        "process_id": job.leader.process_id,
        "shape": job.shape.value,
        "count": job.node_count,
        "running": job.running_count,
        "first_token": job.token(0),
        "first_task": job.task(0),
    }
    for statement in _JOB:
        connection.execute(statement, values)


_OTHERS: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.jobs
        (slot, namespace, process_id, state, node_count, created_at, updated_at)
    SELECT (n * 7919 %% 1024)::smallint, 'orders', 'other' || n, 'running', 10, '2025-01-01',
        '2025-01-01'
    FROM generate_series(1, %(others)s::integer) n""",
    """
    INSERT INTO progressor.job_nodes
        (slot, namespace, process_id, ordinal, state, begun, waits_for, revision, follower_slot,
         created_at, started_at, ended_at, name, follower_namespace, follower_id)
    SELECT j.slot, j.namespace, j.process_id, o, 'done', true, 0, 1, 0, '2025-01-01', '2025-01-01',
        '2025-01-01', 'n' || o, 'orders', j.process_id || '/n' || o
    FROM progressor.jobs j
    CROSS JOIN generate_series(1, 10) o""",
)

_JOB: tuple[LiteralString, ...] = (
    """
    INSERT INTO progressor.job_nodes
        (slot, namespace, process_id, ordinal, state, begun, gated, waits_for, revision,
         follower_slot, created_at, ready_at, started_at, ended_at, name, follower_namespace,
         follower_id, predecessors, successors, constraints)
    SELECT %(slot)s, 'orders', %(process_id)s, n.ordinal, n.state::progressor.node_state,
        n.state = 'done' OR %(shape)s NOT IN ('window', 'gated'), n.gated,
        CASE WHEN n.state = 'waiting' THEN CASE %(shape)s
            WHEN 'pairs' THEN 1
            WHEN 'hub' THEN CASE WHEN n.ordinal = %(running)s + 1 THEN %(running)s ELSE 1 END
            ELSE %(running)s END ELSE 0 END,
        1, (%(number)s + n.ordinal) * 7919 %% 1024, '2025-01-01', '2025-01-01', '2025-01-01',
        CASE WHEN n.state = 'done' THEN '2025-01-01'::timestamptz END, 'n' || n.ordinal, 'orders',
        %(process_id)s || '/n' || n.ordinal,
        CASE
            WHEN n.state <> 'waiting' THEN '{}'
            WHEN %(shape)s = 'pairs' THEN ARRAY[n.ordinal - %(running)s]
            WHEN %(shape)s = 'hub' AND n.ordinal = %(running)s + 1
                THEN ARRAY(SELECT generate_series(1, %(running)s))
            WHEN %(shape)s = 'hub' THEN ARRAY[%(running)s + 1]
            ELSE ARRAY(SELECT generate_series(1, %(count)s - 1))
        END,
        CASE
            WHEN %(shape)s = 'pairs' AND n.ordinal <= %(running)s
                THEN ARRAY[n.ordinal + %(running)s]
            WHEN %(shape)s = 'hub' AND n.ordinal <= %(running)s THEN ARRAY[%(running)s + 1]
            WHEN %(shape)s = 'hub' AND n.ordinal = %(running)s + 1
                THEN ARRAY(SELECT generate_series(%(running)s + 2, %(count)s))
            WHEN %(shape)s = 'fan_in' AND n.ordinal < %(count)s THEN ARRAY[%(count)s::integer]
            ELSE '{}'
        END,
        CASE WHEN n.gated THEN '{"run_at": 1893456000000000}'::json END
    FROM (
        SELECT ordinal, CASE
                WHEN ordinal <= %(running)s THEN 'running'
                WHEN %(shape)s IN ('window', 'gated') THEN 'ready'
                WHEN %(shape)s = 'pairs' AND ordinal <= 2 * %(running)s THEN 'waiting'
                WHEN %(shape)s = 'fan_in' AND ordinal = %(count)s THEN 'waiting'
                WHEN %(shape)s = 'hub' THEN 'waiting'
                ELSE 'done'
            END AS state,
            %(shape)s = 'gated' AND ordinal > %(running)s AS gated
        FROM generate_series(1, %(count)s::integer) ordinal
    ) n""",
    """
    INSERT INTO progressor.jobs
        (slot, namespace, process_id, state, node_count, waiting, ready, running, beginning,
         created_at, updated_at)
    SELECT %(slot)s, 'orders', %(process_id)s, 'running', count(*),
        count(*) FILTER (WHERE n.state = 'waiting'), count(*) FILTER (WHERE n.state = 'ready'),
        count(*) FILTER (WHERE n.state = 'running'),
        count(*) FILTER (WHERE n.state = 'running' AND NOT n.begun), '2025-01-01', '2025-01-01'
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, 'orders', %(process_id)s)""",
    """
    CREATE TEMPORARY TABLE member AS
    SELECT n.ordinal, n.follower_slot AS slot, n.follower_id AS process_id, n.begun
    FROM progressor.job_nodes n
    WHERE (n.slot, n.namespace, n.process_id) = (%(slot)s, 'orders', %(process_id)s)
        AND n.state = 'running'
    UNION ALL
    SELECT 0, %(slot)s, %(process_id)s, true""",
    """
    INSERT INTO progressor.processes
        (slot, namespace, process_id, status, created_at, status_changed_at, init_task_id, led_by,
         leader_slot, leader_namespace, leader_id, node)
    SELECT m.slot, 'orders', m.process_id,
        CASE WHEN m.begun THEN 'running' ELSE 'init' END::progressor.process_status,
        '2025-01-01', '2025-01-01', 1, CASE WHEN m.ordinal = 0 THEN 'processor' END,
        CASE WHEN m.ordinal > 0 THEN %(slot)s::smallint END,
        CASE WHEN m.ordinal > 0 THEN 'orders' END,
        CASE WHEN m.ordinal > 0 THEN %(process_id)s END, nullif(m.ordinal, 0)
    FROM member m""",
    """
    INSERT INTO progressor.running
        (slot, namespace, process_id, task_id, task_type, attempt, token, replica_id, leased_at,
         expires_at)
    SELECT m.slot, 'orders', m.process_id, %(first_task)s + m.ordinal, 'call', 1,
        %(first_token)s + m.ordinal, 1, '2026-01-01', '2026-02-01'
    FROM member m""",
    """
    INSERT INTO progressor.tasks
        (slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,
         scheduled_at, first_started_at, token)
    SELECT m.slot, 'orders', m.process_id, %(first_task)s + m.ordinal, 'call', 'running', 1,
        '2025-01-01', '2025-01-01', '2025-01-01', %(first_token)s + m.ordinal
    FROM member m""",
    "DROP TABLE member",
)
