"""What breaks each invariant of gates, over what `populate_gates` writes."""

from tests.support.storage.doctor.violations import Violations

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
            " (SELECT process_id FROM progressor.gated WHERE state = 'order')"
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
