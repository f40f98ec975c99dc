"""What breaks each invariant, one corruption after the other, over what `populate` writes."""

import dataclasses
from collections.abc import Mapping, Sequence

LEASED = "(SELECT r.process_id FROM progressor.running r)"
SCHEDULED = "(SELECT s.process_id FROM progressor.schedule s)"
ALONE = f"p.process_id NOT IN {LEASED} AND p.process_id NOT IN {SCHEDULED}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What breaks an invariant, and which others with it: none, unless it says so."""

    invariant: str
    statement: str
    besides: frozenset[str]


Violations = Mapping[str, Sequence[str | tuple[str, ...]]]
"""By invariant, the statements that break it; in a tuple, before others that they break besides."""


def violations(by_invariant: Violations) -> tuple[Violation, ...]:
    return tuple(
        Violation(invariant=invariant, statement=statement, besides=frozenset(besides))
        for invariant, found in by_invariant.items()
        for statement, *besides in ((it,) if isinstance(it, str) else it for it in found)
    )


def process(change: str, where: str) -> str:
    return f"UPDATE progressor.processes p SET {change} WHERE {where}"  # noqa: S608  our words


CALL_OF_A_BROKEN_ONE = f"""
    WITH call AS (
        SELECT p.slot, p.namespace, p.process_id, nextval('progressor.task_ids') AS task_id
        FROM progressor.processes p
        WHERE p.status = 'error' AND {ALONE}
    ),
    recorded AS (
        INSERT INTO progressor.tasks
            (slot, namespace, process_id, task_id, task_type, status, created_at)
        SELECT slot, namespace, process_id, task_id, 'call', 'waiting', now()
        FROM call
    )
    INSERT INTO progressor.schedule
        (slot, namespace, process_id, task_id, task_type, status, due_at, replica_id)
    SELECT slot, namespace, process_id, task_id, 'call', 'waiting', now(), 1
    FROM call"""  # noqa: S608  our words

VIOLATIONS: Violations = {
    "leases_match_their_tasks": [
        "UPDATE progressor.running SET token = 0",
        "UPDATE progressor.running SET attempt = 7",
        "UPDATE progressor.running SET task_type = 'repair'",
        "UPDATE progressor.tasks SET token = NULL WHERE status = 'running'",
        (
            "UPDATE progressor.tasks SET status = 'waiting' WHERE status = 'running'",
            "unfinished_tasks_are_scheduled_or_leased",
        ),
    ],
    "scheduled_tasks_match_their_records": [
        "UPDATE progressor.schedule SET attempt = 7",
        "UPDATE progressor.schedule SET task_type = 'notify' WHERE task_type = 'call'",
        (
            "UPDATE progressor.tasks SET status = 'cancelled', finished_at = now()"
            " WHERE status = 'waiting'"
        ),
        "DELETE FROM progressor.tasks WHERE status = 'waiting'",
    ],
    "tasks_fit_their_process_status": [
        process("(status, finished_at) = ('finished', now())", "status = 'running'"),
        ("DELETE FROM progressor.processes WHERE status = 'running'", "rows_have_a_process"),
        (
            process("status = 'init'", "status = 'running'"),
            "processes_leave_init_with_their_init_task",
        ),
        ("UPDATE progressor.running SET task_type = 'init'", "leases_match_their_tasks"),
    ],
    "broken_processes_wait_for_repair": [
        process("status = 'error', detail = ''", "status = 'running'"),
        process("corrupted_by = NULL", "status = 'error'"),
        CALL_OF_A_BROKEN_ONE,
        (
            process("corrupted_by = init_task_id", f"status = 'error' AND NOT ({ALONE})"),
            "broken_processes_name_the_failed_task",
        ),
        (
            (
                "UPDATE progressor.processes p SET corrupted_by = s.task_id FROM"
                " progressor.schedule s WHERE p.status = 'error' AND s.process_id = p.process_id"
                " AND s.task_type = 'timeout'"
            ),
            "broken_processes_name_the_failed_task",
        ),
    ],
    "broken_processes_name_the_failed_task": [
        process("corrupted_by = init_task_id", f"status = 'error' AND {ALONE}"),
        process("corrupted_by = 0", f"status = 'error' AND {ALONE}"),
    ],
    "waiting_tasks_are_due_in_order": [
        "UPDATE progressor.schedule SET due_at = NULL WHERE task_type = 'call'",
        (
            "UPDATE progressor.schedule SET status = 'blocked'"
            " WHERE task_type = 'timeout' AND status = 'waiting'"
        ),
        "UPDATE progressor.schedule SET due_at = now() WHERE due_at IS NULL",
        "UPDATE progressor.schedule SET status = 'waiting'",
    ],
    "ids_are_below_their_sequences": [
        "ALTER SEQUENCE progressor.task_ids RESTART WITH 1",
        "ALTER SEQUENCE progressor.lease_tokens RESTART WITH 1",
    ],
    "last_event_ids_match_the_histories": [
        (
            process("last_event_id = last_event_id + 1", f"p.process_id IN {LEASED}"),
            "event_ids_have_no_gaps",
        ),
        (
            (
                "DELETE FROM progressor.events e USING progressor.running r"
                " WHERE r.process_id = e.process_id"
            ),
            "event_ids_have_no_gaps",
            "tasks_name_their_own_events",
        ),
    ],
    "unfinished_tasks_are_scheduled_or_leased": [
        "DELETE FROM progressor.schedule WHERE task_type = 'timeout'",
        ("DELETE FROM progressor.running", "waiting_tasks_are_due_in_order"),
    ],
    "rows_have_a_process": [
        f"DELETE FROM progressor.processes p WHERE status = 'error' AND {ALONE}",  # noqa: S608  ours
        "DELETE FROM progressor.namespaces",
    ],
    "event_ids_have_no_gaps": [
        process("last_event_id = last_event_id + 1", f"p.process_id NOT IN {LEASED}"),
        (
            f"DELETE FROM progressor.events WHERE event_id = 1 AND process_id IN {LEASED}",  # noqa: S608  ours
            "tasks_name_their_own_events",
        ),
        (
            "UPDATE progressor.events SET event_id = 3 WHERE event_id = 2",
            "last_event_ids_match_the_histories",
        ),
    ],
    "tasks_name_their_own_events": [
        "UPDATE progressor.tasks SET event_count = event_count + 1 WHERE status = 'finished'",
        "UPDATE progressor.tasks SET first_event_id = first_event_id + 1",
        "UPDATE progressor.events SET task_id = 0",
        "UPDATE progressor.tasks SET status = 'error' WHERE event_count > 0",
    ],
    "processes_leave_init_with_their_init_task": [
        process("init_task_id = 0", "status = 'error'"),
        process("status = 'init'", f"status = 'running' AND p.process_id NOT IN {LEASED}"),
    ],
    "idempotency_keys_are_unique": [
        (
            "DROP INDEX progressor.tasks_by_idempotency_key;"
            "UPDATE progressor.tasks SET idempotency_key = 'one' WHERE process_id IN"
            " (SELECT process_id FROM progressor.tasks GROUP BY process_id HAVING count(*) = 2)"
        ),
    ],
    "finished_tasks_were_leased": [
        "UPDATE progressor.tasks SET attempt_count = 0 WHERE status = 'finished'",
        "UPDATE progressor.tasks SET started_at = NULL WHERE status = 'finished'",
    ],
}
