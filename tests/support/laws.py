"""The laws of storage, as questions to the tables: whatever a query returns breaks its law."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg

LAWS: Mapping[str, LiteralString] = MappingProxyType(
    {
        "what runs is leased, under the token of its task": """
            SELECT coalesce(r.process_id, t.process_id), coalesce(r.task_id, t.task_id)
            FROM progressor.running r
            FULL JOIN (SELECT * FROM progressor.tasks WHERE status = 'running') t
                USING (slot, namespace, process_id, task_id)
            WHERE r.token IS DISTINCT FROM t.token
                OR r.attempt IS DISTINCT FROM t.attempt_count
                OR r.task_type IS DISTINCT FROM t.task_type""",
        "an unfinished task is scheduled or leased, an ended one neither": """
            SELECT t.process_id, t.task_id, t.status
            FROM progressor.tasks t
            LEFT JOIN progressor.schedule s USING (slot, namespace, process_id, task_id)
            LEFT JOIN progressor.running r USING (slot, namespace, process_id, task_id)
            WHERE (s.task_id IS NOT NULL)::int + (r.task_id IS NOT NULL)::int
                <> (t.status IN ('waiting', 'running', 'blocked'))::int""",
        "what is scheduled has a task like it": """
            SELECT s.process_id, s.task_id
            FROM progressor.schedule s
            LEFT JOIN progressor.tasks t USING (slot, namespace, process_id, task_id)
            WHERE t.status IS NULL
                OR t.status NOT IN ('waiting', 'blocked')
                OR t.task_type <> s.task_type
                OR t.attempt_count <> s.attempt""",
        "every row is of a process, and every process of a namespace": """
            SELECT o.kind, o.process_id
            FROM (
                SELECT 'task' AS kind, slot, namespace, process_id FROM progressor.tasks
                UNION ALL SELECT 'schedule', slot, namespace, process_id FROM progressor.schedule
                UNION ALL SELECT 'running', slot, namespace, process_id FROM progressor.running
                UNION ALL SELECT 'event', slot, namespace, process_id FROM progressor.events
            ) o
            LEFT JOIN progressor.processes p USING (slot, namespace, process_id)
            WHERE p.process_id IS NULL
            UNION ALL
            SELECT 'process', p.process_id
            FROM progressor.processes p
            LEFT JOIN progressor.namespaces n ON n.name = p.namespace
            WHERE n.name IS NULL""",
        "event ids run 1 .. n": """
            SELECT p.process_id, p.last_event_id, count(e.event_id), max(e.event_id)
            FROM progressor.processes p
            LEFT JOIN progressor.events e USING (slot, namespace, process_id)
            GROUP BY p.slot, p.namespace, p.process_id
            HAVING count(e.event_id) <> p.last_event_id
                OR coalesce(max(e.event_id), 0) <> p.last_event_id
                OR coalesce(min(e.event_id), 1) <> 1""",
        "a task owns the events that its record names": """
            SELECT t.process_id, t.task_id
            FROM progressor.tasks t
            LEFT JOIN progressor.events e USING (slot, namespace, process_id, task_id)
            GROUP BY t.slot, t.namespace, t.process_id, t.task_id
            HAVING count(e.event_id) <> t.event_count
                OR min(e.event_id) IS DISTINCT FROM t.first_event_id
                OR (t.event_count > 0 AND t.status <> 'finished')""",
        "a process is in init as long as its init task": """
            SELECT p.process_id, p.status, t.status
            FROM progressor.processes p
            LEFT JOIN progressor.tasks t
                ON (t.slot, t.namespace, t.process_id, t.task_id)
                 = (p.slot, p.namespace, p.process_id, p.init_task_id)
            WHERE t.task_type IS DISTINCT FROM 'init'
                OR (p.status = 'init') <> (t.status IN ('waiting', 'running'))""",
        "a broken process waits for repairs, or for its timer run again, alone": """
            SELECT p.process_id, w.task_id, w.task_type
            FROM progressor.processes p
            LEFT JOIN progressor.tasks b
                ON (b.slot, b.namespace, b.process_id, b.task_id)
                 = (p.slot, p.namespace, p.process_id, p.corrupted_by)
            JOIN (
                SELECT slot, namespace, process_id, task_id, task_type FROM progressor.schedule
                UNION ALL
                SELECT slot, namespace, process_id, task_id, task_type FROM progressor.running
            ) w ON (w.slot, w.namespace, w.process_id) = (p.slot, p.namespace, p.process_id)
            WHERE p.status = 'error' AND w.task_type <> 'repair'
                AND NOT (w.task_type IN ('timeout', 'remove')
                    AND b.task_type = w.task_type AND w.task_id > b.task_id)
            UNION ALL
            SELECT p.process_id, p.corrupted_by, b.task_type
            FROM progressor.processes p
            LEFT JOIN progressor.tasks b
                ON (b.slot, b.namespace, b.process_id, b.task_id)
                 = (p.slot, p.namespace, p.process_id, p.corrupted_by)
            WHERE p.corrupted_by IS NOT NULL AND b.status IS DISTINCT FROM 'error'""",
        "a finished process waits for nothing": """
            SELECT p.process_id, w.task_id
            FROM progressor.processes p
            JOIN progressor.tasks w USING (slot, namespace, process_id)
            WHERE p.status = 'finished' AND w.status IN ('waiting', 'running', 'blocked')""",
        "what waits has exactly one way on": """
            SELECT s.process_id, s.task_id, s.task_type, s.status, s.due_at
            FROM (
                SELECT s.*, r.task_id IS NOT NULL AS is_busy,
                    s.task_type IN ('timeout', 'remove') AS is_timer,
                    row_number() OVER line AS place
                FROM progressor.schedule s
                LEFT JOIN progressor.running r USING (slot, namespace, process_id)
                WINDOW line AS (
                    PARTITION BY s.slot, s.namespace, s.process_id
                    ORDER BY s.task_type IN ('timeout', 'remove'), s.task_id
                )
            ) s
            WHERE (NOT s.is_busy AND s.place = 1)
                <> (s.status = 'waiting' AND s.due_at IS NOT NULL)""",
        "a key names one task": """
            SELECT process_id, idempotency_key
            FROM progressor.tasks
            WHERE idempotency_key IS NOT NULL
            GROUP BY slot, namespace, process_id, idempotency_key
            HAVING count(*) > 1""",
        "a task succeeds only after it was tried": """
            SELECT t.process_id, t.task_id
            FROM progressor.tasks t
            JOIN progressor.processes p USING (slot, namespace, process_id)
            WHERE t.status = 'finished' AND (t.attempt_count = 0 OR t.started_at IS NULL)
                AND NOT (t.task_id = p.init_task_id AND t.scheduled_at IS NULL)""",
    }
)

_ENDED: LiteralString = """
    SELECT task_id, (status, finished_at, response, error_code, error_reason, event_count)::text
    FROM progressor.tasks
    WHERE status IN ('finished', 'error', 'cancelled')"""
_EVENTS: LiteralString = """
    SELECT p.init_task_id::text || '/' || e.event_id, e::text
    FROM progressor.events e
    JOIN progressor.processes p USING (slot, namespace, process_id)"""
_KNOWN: LiteralString = "SELECT task_id::text, '' FROM progressor.tasks"
_LIVING: LiteralString = "SELECT init_task_id FROM progressor.processes"


def broken_laws(connection: psycopg.Connection[Any]) -> dict[str, list[Any]]:
    """Return the rows that break a law, by the law; empty: all hold."""
    found = {law: connection.execute(query).fetchall() for law, query in LAWS.items()}
    return {law: offending for law, offending in found.items() if offending}


class Past:
    """What never changes: how tasks ended, and events, as long as their process is there."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._ended: dict[int, str] = {}
        self._events: dict[str, str] = {}

    def look(self, connection: psycopg.Connection[Any]) -> list[str]:
        """Compare with what was, and return what has changed of it."""
        ended = dict(connection.execute(_ENDED).fetchall())
        events = dict(connection.execute(_EVENTS).fetchall())
        known = {int(row[0]) for row in connection.execute(_KNOWN).fetchall()}
        living = {row[0] for row in connection.execute(_LIVING).fetchall()}
        changed = [
            f"task {task_id} was {was}, is {ended.get(task_id)}"
            for task_id, was in self._ended.items()
            if task_id in known and ended.get(task_id) != was
        ]
        changed += [
            f"event {event} was {was}, is {events.get(event)}"
            for event, was in self._events.items()
            if int(event.split("/")[0]) in living and events.get(event) != was
        ]
        self._ended, self._events = ended, events
        return changed
