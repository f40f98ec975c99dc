"""What breaks each invariant, one corruption after the other, over what `populations` writes."""

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
MEMO = """
    INSERT INTO progressor.memos (slot, namespace, process_id, task_id, key, value, created_at)
    SELECT t.slot, t.namespace, t.process_id, t.task_id, 'k', '', now()
    FROM progressor.tasks t
    WHERE {}"""
REPLY = """
    INSERT INTO progressor.reply_requests (slot, namespace, process_id, task_id, kind, reply,
        sender_slot, sender_namespace, sender_id, sender_init_id, sender_task_id, number)
    SELECT t.slot, t.namespace, t.process_id, t.task_id, 'call', 'r', 0, 'orders', 'p', 1, 1, 1
    FROM progressor.tasks t
    WHERE {}"""
ANSWERING = process("has_reply_requests = true", "true") + ";"
VIOLATIONS: Violations = {
    "counts_equal_processes": [
        "INSERT INTO progressor.process_counts VALUES ('orders', 'error', NULL, 1)",
        "INSERT INTO progressor.process_counts VALUES ('nowhere', NULL, 'init', 1)",
        "DELETE FROM progressor.process_counts",
    ],
    "timer_names_are_unique_in_a_process": [
        "UPDATE progressor.tasks SET timer_name = 'a' WHERE timer_name = 'b'",
        process("has_named_timers = false", "has_named_timers"),
    ],
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
            (
                "UPDATE progressor.tasks SET status = 'cancelled', finished_at = now()"
                " WHERE status = 'waiting'"
            ),
            "held_tasks_belong_to_broken_processes",
        ),
        (
            "DELETE FROM progressor.tasks WHERE status = 'waiting'",
            "broken_processes_name_the_failed_task",
            "held_tasks_belong_to_broken_processes",
        ),
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
    ],
    "held_tasks_belong_to_broken_processes": [
        "UPDATE progressor.held SET attempt = 7",
        process(
            "status = 'running', detail = NULL, corrupted_by = NULL",
            "p.process_id = (SELECT min(h.process_id) FROM progressor.held h)",
        ),
        (
            (
                "INSERT INTO progressor.schedule"
                " (slot, namespace, process_id, task_id, task_type, status, replica_id)"
                " SELECT slot, namespace, process_id, task_id, task_type, 'waiting', 1"
                " FROM progressor.held WHERE task_type = 'notify'"
            ),
            "broken_processes_wait_for_repair",
            "waiting_tasks_are_due_in_order",
        ),
    ],
    "replies_are_requested_of_what_has_not_ended": [
        REPLY.format("t.status = 'running'"),
        ANSWERING + REPLY.format("t.status = 'finished'"),
        ANSWERING + REPLY.replace("t.task_id", "0", 1).format("t.status = 'running'"),
    ],
    "memos_belong_to_tasks_that_can_run": [
        MEMO.format("t.status = 'running'"),
        MEMO.format("t.status = 'finished'"),
        MEMO.replace("t.task_id", "0", 1).format("t.status = 'running'"),
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
        (
            f"DELETE FROM progressor.processes p WHERE status = 'error' AND {ALONE}",  # noqa: S608  ours
            "held_tasks_belong_to_broken_processes",
        ),
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


VIOLATIONS_OF_GATES: Violations = {
    "gates_count_their_holders": [
        "UPDATE progressor.gates SET held = held + 1 WHERE gate = 'free'",
        ("DELETE FROM progressor.gates WHERE gate = 'mutex'", "gate_queues_wait_for_full_gates"),
        (
            "DELETE FROM progressor.gate_holders WHERE gate = 'for good'",
            "marked_processes_are_gated",
        ),
    ],
    "gates_are_within_their_capacity": [
        (
            "UPDATE progressor.gates SET capacity = 0, updated_at = updated_at - interval '1 s'"
            " WHERE gate = 'mutex'"
        ),
    ],
    "gated_tasks_match_their_records": [
        "UPDATE progressor.tasks SET constraints = NULL WHERE status = 'waiting'",
        "UPDATE progressor.gated SET task_type = 'notify' WHERE task_type = 'call'",
        (
            "UPDATE progressor.tasks t SET status = 'cancelled', finished_at = t.created_at,"
            " spent_us = '{0,0,0,0,0,0}' FROM progressor.gated g"
            " WHERE g.state = 'order' AND t.task_id = g.task_id"
        ),
    ],
    "available_tasks_are_scheduled_or_leased": [
        "UPDATE progressor.gated SET state = 'available' WHERE state = 'order'",
        (
            (
                "INSERT INTO progressor.running (slot, namespace, process_id, task_id, task_type,"
                " attempt, token, replica_id, leased_at, expires_at) SELECT slot, namespace,"
                " process_id, task_id, task_type, 1, 1, 1, now(), now() FROM progressor.gated WHERE"
                " state = 'order'"
            ),
            "leases_match_their_tasks",
        ),
    ],
    "available_tasks_hold_their_gates": [
        "UPDATE progressor.gated SET gates = gates || '{another}' WHERE state = 'available'",
        (
            "UPDATE progressor.gate_holders SET is_reserved = true WHERE gate = 'at work'",
            "gate_holders_still_need_their_gates",
        ),
    ],
    "gate_holders_still_need_their_gates": [
        "UPDATE progressor.gate_holders SET hold = 'task' WHERE hold = 'process'",
        "UPDATE progressor.gate_holders SET task_id = 0 WHERE gate = 'mutex'",
        "UPDATE progressor.gate_holders SET is_reserved = true WHERE gate = 'for good'",
        (
            "UPDATE progressor.processes SET status = 'error', detail = '' WHERE process_id ="
            " (SELECT process_id FROM progressor.gate_holders WHERE hold = 'process')"
        ),
    ],
    "gate_queues_match_their_tasks": [
        "UPDATE progressor.gate_queues SET head_priority = 5",
        "UPDATE progressor.gate_queues SET head_task_id = 0",
        "UPDATE progressor.gate_queues SET oldest_at = oldest_at - interval '1 s'",
        "UPDATE progressor.gate_queues SET oldest_id = 0",
        "UPDATE progressor.gate_queues SET waits_on = 'at work'",
        "DELETE FROM progressor.gate_queues",
        "UPDATE progressor.gated SET gates = '{another}' WHERE queue IS NOT NULL",
    ],
    "gated_processes_are_marked": [
        "UPDATE progressor.processes SET is_gated = false WHERE is_gated",
        (
            "UPDATE progressor.processes p SET is_gated = false FROM progressor.gate_holders h"
            " WHERE h.gate = 'for good' AND h.process_id = p.process_id"
        ),
        "UPDATE progressor.processes SET is_gated = false WHERE status = 'error'",
    ],
    "tasks_behind_their_process_have_one_ahead": [
        "UPDATE progressor.gated SET state = 'process' WHERE state = 'order'",
    ],
    "gate_queues_wait_for_full_gates": [
        "UPDATE progressor.gates SET capacity = 9",
        "UPDATE progressor.gate_queues SET waits_on = NULL",
    ],
    "orders_wait_for_smaller_versions": [
        "UPDATE progressor.gated SET order_version = '{1}' WHERE order_key IS NOT NULL",
    ],
    "passed_instants_are_noticed": [
        "UPDATE progressor.gated SET run_at = run_at - interval '1 d' WHERE state = 'time'",
    ],
    "marked_processes_are_gated": [
        (
            (
                "INSERT INTO progressor.processes (slot, namespace, process_id, status, created_at,"
                " status_changed_at, init_task_id, is_gated) SELECT slot, namespace, 'another',"
                " status, created_at, status_changed_at, init_task_id, true FROM"
                " progressor.processes WHERE status = 'running' LIMIT 1"
            ),
            "processes_leave_init_with_their_init_task",
        ),
    ],
    "times_spent_add_up": [
        "UPDATE progressor.tasks SET spent_us[2] = spent_us[2] + 1 WHERE spent_us IS NOT NULL",
        "UPDATE progressor.tasks SET spent_us = NULL WHERE spent_us IS NOT NULL",
        (
            "UPDATE progressor.tasks SET spent_us = '{0,0,0,0,0,0}'"
            " WHERE status = 'waiting' AND constraints IS NOT NULL"
        ),
    ],
    "tasks_fit_their_process_status": [
        (
            "UPDATE progressor.processes SET init_task_id = 0 WHERE status = 'init'",
            "processes_leave_init_with_their_init_task",
        ),
    ],
    "broken_processes_wait_for_repair": [
        (
            "UPDATE progressor.processes SET status = 'error', detail = '' WHERE process_id ="
            " (SELECT min(process_id) FROM progressor.gated WHERE state = 'gates')"
        ),
    ],
    "waiting_tasks_are_due_in_order": [
        "UPDATE progressor.schedule SET due_at = now() WHERE due_at IS NULL",
    ],
    "ids_are_below_their_sequences": [
        "ALTER SEQUENCE progressor.task_ids RESTART WITH 1",
    ],
    "unfinished_tasks_are_scheduled_or_leased": [
        ("DELETE FROM progressor.gated WHERE state = 'order'", "marked_processes_are_gated"),
    ],
}


_AT_WORK = "(SELECT process_id FROM progressor.jobs WHERE node_count = 9)"
_CANCELLED = "(SELECT process_id FROM progressor.jobs WHERE state = 'cancelled')"


def node(change: str, ordinal: int) -> str:
    return (
        f"UPDATE progressor.job_nodes n SET {change}"  # noqa: S608  our words
        f" WHERE n.ordinal = {ordinal} AND n.process_id = {_AT_WORK}"
    )


def job(change: str, where: str = "node_count = 9") -> str:
    """Return the statement that changes jobs, the one at work unless said otherwise."""
    return f"UPDATE progressor.jobs j SET {change} WHERE {where}"  # noqa: S608  our words


def follower(change: str, ordinal: int) -> str:
    return (
        f"UPDATE progressor.processes p SET {change}"  # noqa: S608  our words
        f" WHERE p.node = {ordinal} AND p.leader_id = {_AT_WORK}"
    )


def end(leader: str) -> str:
    """Return the statement that ends the leader of a job, and nothing else of it."""
    return (
        "UPDATE progressor.processes p SET (status, finished_at) = ('finished', now())"  # noqa: S608  ours
        f" WHERE p.process_id = {leader}"
    )


VIOLATIONS_OF_JOBS: Violations = {
    "job_counters_match_their_nodes": [
        job("waiting = waiting - 1"),
        (job("node_count = node_count + 1"), "node_ordinals_have_no_gaps"),
        job("beginning = 0"),
        job("skipped = skipped - 1, failed = failed + 1"),
        node("begun = true", 4),
    ],
    "nodes_count_their_predecessors": [
        node("waits_for = 1", 5),
        node("waits_for = 3", 5),
        (
            node("(state, waits_for, started_at) = ('running', 0, now())", 5),
            "job_counters_match_their_nodes",
            "nodes_match_their_followers",
        ),
        (node("(predecessors, waits_for) = ('{1}', 0)", 5), "edges_are_known_at_both_ends"),
    ],
    "nodes_are_skipped_after_a_failure": [
        node("skipped_because_of = 9", 8),
        node("skipped_because_of = 3", 7),
        node("skipped_because_of = 77", 7),
        (
            node("(state, skipped_because_of, ended_at) = ('waiting', NULL, NULL)", 8),
            "job_counters_match_their_nodes",
        ),
        (
            node("(state, skipped_because_of, ended_at, waits_for) = ('skipped', 6, now(), 2)", 5),
            "job_counters_match_their_nodes",
        ),
    ],
    "nodes_match_their_followers": [
        follower("(leader_id, leader_slot, leader_namespace, node) = (NULL, NULL, NULL, NULL)", 3),
        (follower("node = 77", 3), "working_followers_have_running_nodes"),
        node("error_reason = NULL", 9),
        follower("(status, finished_at) = ('finished', now())", 3),
        (
            follower("(status, finished_at) = ('running', NULL)", 1),
            "working_followers_have_running_nodes",
        ),
        follower(
            "(status, detail, corrupted_by, finished_at) = ('finished', NULL, NULL, now())", 6
        ),
        follower("node = 8", 6)
        + ";"
        + node("error_reason = 'BUG'", 6)
        + ";"
        + node(
            "(follower_slot, follower_id, started_at) ="
            " (SELECT o.follower_slot, o.follower_id, now() FROM"
            " progressor.job_nodes o WHERE o.ordinal = 6"
            " AND o.process_id = n.process_id)",
            8,
        ),
    ],
    "ready_nodes_wait_for_room": [
        (
            job("beginning = 513, running = 513, node_count = 520"),
            "job_counters_match_their_nodes",
            "node_ordinals_have_no_gaps",
        ),
        (
            job("ready = 1, waiting = 0")
            + ";"
            + node("(state, waits_for, predecessors) = ('ready', 0, '{1}')", 5),
            "edges_are_known_at_both_ends",
        ),
    ],
    "jobs_are_joined_when_all_nodes_have_ended": [
        (job("join_task_id = NULL", "join_task_id IS NOT NULL"), "jobs_are_joined_once"),
        (
            (
                "UPDATE progressor.jobs j SET (ready, upkeep_due_at) = (1, now()) WHERE"
                " join_task_id IN (SELECT task_id FROM progressor.schedule)"
            ),
            "job_counters_match_their_nodes",
            "job_upkeep_is_done_in_time",
        ),
        "UPDATE progressor.processes SET led_by = 'engine' WHERE led_by = 'processor'",
        (
            "UPDATE progressor.tasks SET task_type = 'call' WHERE task_type = 'join';"
            "UPDATE progressor.schedule SET task_type = 'call' WHERE task_type = 'join'"
        ),
    ],
    "jobs_are_joined_once": [
        (
            job(
                "join_task_id = (SELECT min(task_id) FROM progressor.tasks t"
                " WHERE t.process_id = j.process_id)",
                "join_task_id IS NOT NULL",
            ),
            "jobs_are_joined_when_all_nodes_have_ended",
        ),
        (
            (
                "DELETE FROM progressor.job_nodes n USING progressor.schedule s"
                " WHERE s.task_type = 'join' AND s.process_id = n.process_id;"
                "DELETE FROM progressor.jobs n USING progressor.schedule s"
                " WHERE s.task_type = 'join' AND s.process_id = n.process_id"
            ),
            "ended_jobs_match_their_leaders",
        ),
    ],
    "jobs_run_as_long_as_their_leaders": [
        end(_AT_WORK),
        (
            f"UPDATE progressor.processes SET led_by = NULL WHERE process_id = {_AT_WORK}",  # noqa: S608  ours
            "job_rows_have_a_leader",
        ),
    ],
    "ended_jobs_match_their_leaders": [
        job("state = 'failed'", "state = 'done'"),
        job("state = 'cancelled'", "state = 'failed'"),
        "UPDATE progressor.processes SET led_by = 'processor' WHERE led_by IS NULL",
    ],
    "job_rows_have_a_leader": [
        (
            "UPDATE progressor.processes p SET led_by = NULL FROM progressor.jobs j"
            " WHERE j.state = 'done' AND p.process_id = j.process_id"
        ),
        "DELETE FROM progressor.jobs WHERE state = 'failed'",
    ],
    "ended_jobs_have_no_open_nodes": [
        "UPDATE progressor.job_nodes n SET state = 'waiting', ended_at = NULL"  # noqa: S608  ours
        f" WHERE state = 'cancelled' AND process_id = {_CANCELLED};"
        + job("cancelled = 0, waiting = 1", "state = 'cancelled'"),
        job("failed = 0", "state = 'done'"),
        (
            "UPDATE progressor.job_nodes n SET follower_id = 'absent'"  # noqa: S608  our words
            f" WHERE state = 'running' AND process_id = {_CANCELLED}"
        ),
    ],
    "node_ordinals_have_no_gaps": [
        node("ordinal = 10", 9),
        node("name = 'n1'", 9),
    ],
    "edges_are_known_at_both_ends": [
        node("successors = '{}'", 7),
        node("successors = '{8,8}'", 7),
        node("successors = '{8,9}'", 7),
        node("(predecessors, successors) = (predecessors || 7, successors || 7)", 7),
    ],
    "working_followers_have_running_nodes": [
        (
            "UPDATE progressor.processes p SET (leader_slot, leader_namespace, leader_id, node) ="
            " (SELECT j.slot, j.namespace, j.process_id, 9 FROM progressor.jobs j"
            " WHERE j.node_count = 9)"
            " WHERE p.led_by = 'processor'"
        ),
    ],
    "job_upkeep_is_done_in_time": [
        job("upkeep_due_at = now()"),
    ],
    "job_deadlines_are_enforced": [
        job("deadline_at = '-infinity'"),
    ],
}


def again(ahead: str) -> str:
    """Return the statement that has what was run ran again, so much later."""
    return (
        "INSERT INTO progressor.schedule_runs (slot, namespace, schedule_id, instant, cause, state,"  # noqa: S608  ours
        " overlap_policy, due_at, recorded_at, started_at, process_slot, process_id, task_type,"
        " task_id)"
        f" SELECT slot, namespace, schedule_id, instant + interval '{ahead}', cause, state,"
        " overlap_policy, due_at, recorded_at, started_at, process_slot, process_id, task_type,"
        " task_id"
        " FROM progressor.schedule_runs"
    )


VIOLATIONS_OF_SCHEDULES: Violations = {
    "schedules_run_on_time": [
        (
            (
                "UPDATE progressor.schedules SET (next_instant, next_at)"
                " = (next_instant - interval '2 minutes', next_at - interval '2 minutes')"
            ),
            "schedule_runs_precede_the_next_instant",
        ),
    ],
    "queued_runs_are_started": [
        "UPDATE progressor.schedule_runs SET (state, task_id, started_at) = ('queued', NULL, NULL)",
    ],
    "schedule_runs_precede_the_next_instant": [
        (
            "UPDATE progressor.schedules s SET (next_instant, next_at) = (f.instant, now() + '1"
            " hour') FROM progressor.schedule_runs f WHERE f.schedule_id = s.schedule_id"
        ),
    ],
    "schedule_runs_start_one_task_each": [
        (again("-1 second"), "schedule_runs_have_a_schedule"),
    ],
    "schedule_runs_name_their_own_tasks": [
        "UPDATE progressor.tasks SET idempotency_key = 'another' WHERE task_type = 'init'",
        "UPDATE progressor.schedule_runs SET task_type = 'call'",
    ],
    "schedule_runs_have_a_schedule": [
        "DELETE FROM progressor.schedules",
        "UPDATE progressor.schedules SET started_count = 0",
    ],
    "schedules_have_a_namespace": [
        (
            "INSERT INTO progressor.schedules SELECT (jsonb_populate_record(s,"
            " jsonb_build_object('namespace', 'nowhere'))).* FROM progressor.schedules s"
        ),
    ],
}


def tampered(statement: str, other: str = "last_audit_entries_form_a_chain") -> tuple[str, str]:
    """Return what the owner of the tables can do to entries, and the other check that finds it."""
    return f"SET LOCAL session_replication_role = replica; {statement}", other


VIOLATIONS_OF_AUDIT: Violations = {
    "last_audit_entries_form_a_chain": [
        tampered(
            "DELETE FROM progressor.audit_entries WHERE number = 1", "audit_entries_form_a_chain"
        ),
    ],
    "audit_entries_form_a_chain": [
        tampered(
            'UPDATE progressor.audit_entries SET entry = entry || \'{"principal": "another"}\''
            " WHERE number = 2"
        ),
        tampered("UPDATE progressor.audit_entries SET result = 'OK' WHERE number = 3"),
        tampered("UPDATE progressor.audit_entries SET written_at = now() WHERE number = 1"),
        tampered("DELETE FROM progressor.audit_entries WHERE number = 2"),
        # The tail, while the chain has its head.
        tampered("DELETE FROM progressor.audit_entries WHERE number = 4"),
        # One that swaps two of them, and one that adds another at the end.
        tampered(
            "UPDATE progressor.audit_entries e SET written_at = o.written_at"
            " FROM progressor.audit_entries o WHERE (e.number, o.number) IN ((2, 4), (4, 2))"
        ),
        tampered(
            "INSERT INTO progressor.audit_entries (entry, number, hash)"
            " SELECT jsonb_build_object('request_id', gen_random_uuid()), 5, sha256('')"
        ),
        tampered(
            "INSERT INTO progressor.audit_entries (entry, number, hash)"
            " SELECT jsonb_build_object('request_id', gen_random_uuid()), 0, sha256('')"
        ),
        # One that makes a changed entry fit what is before it.
        tampered(
            "UPDATE progressor.audit_entries SET result = 'FORGED' WHERE number = 2;"
            " UPDATE progressor.audit_entries e SET hash = progressor.hash_audit_entry("
            "(SELECT o.hash FROM progressor.audit_entries o WHERE o.number = 1), e)"
            " WHERE number = 2"
        ),
    ],
}
VIOLATIONS_OF_BULKS: Violations = {
    "bulk_operations_have_a_task": [
        (
            "DELETE FROM progressor.schedule WHERE namespace = 'progressor.operations'",
            "unfinished_tasks_are_scheduled_or_leased",
        ),
    ],
    "bulk_counters_match_their_items": [
        "UPDATE progressor.bulk_operations SET matched_count = matched_count + 1",
        "UPDATE progressor.bulk_operations SET done_count = done_count - 1",
        "UPDATE progressor.bulk_operations SET next_item = 4 WHERE state = 'running'",
        "UPDATE progressor.bulk_operations SET ended_at = NULL WHERE state = 'stopped'",
        (
            "UPDATE progressor.bulk_operations SET (state, ended_at) = ('done', now())"
            " WHERE operation_id = 'at work'"
        ),
        "DELETE FROM progressor.bulk_items WHERE operation_id = 'deleted' AND item = 1",
        "UPDATE progressor.bulk_items SET result = NULL WHERE item = 1",
    ],
    "bulk_items_have_an_operation": ["DELETE FROM progressor.bulk_operations"],
}
