"""What breaks each invariant of gates, over what `populate_gates` writes."""

from tests.support.storage.doctor.violations import breaks

VIOLATIONS_OF_GATES = (
    breaks(
        "gates_count_their_holders",
        "UPDATE progressor.gates SET held = held + 1 WHERE gate = 'free'",
    ),
    breaks(
        "gates_count_their_holders",
        "DELETE FROM progressor.gates WHERE gate = 'mutex'",
        "gate_queues_wait_for_full_gates",
    ),
    breaks(
        "gates_count_their_holders",
        "DELETE FROM progressor.gate_holders WHERE gate = 'for good'",
        "processes_are_gated_for_a_reason",
    ),
    breaks(
        "gates_have_room_for_their_holders",
        "UPDATE progressor.gates SET capacity = 0, updated_at = updated_at - interval '1 s'"
        " WHERE gate = 'mutex'",
    ),
    breaks(
        "gated_tasks_are_recorded",
        "UPDATE progressor.tasks SET constraints = NULL WHERE status = 'waiting'",
    ),
    breaks(
        "gated_tasks_are_recorded",
        "UPDATE progressor.gated SET task_type = 'notify' WHERE task_type = 'call'",
    ),
    breaks(
        "gated_tasks_are_recorded",
        "UPDATE progressor.tasks t SET status = 'cancelled', finished_at = t.created_at,"
        " spent_us = '{0,0,0,0,0,0}' FROM progressor.gated g"
        " WHERE g.state = 'order' AND t.task_id = g.task_id",
    ),
    breaks(
        "available_tasks_are_in_line",
        "UPDATE progressor.gated SET state = 'available' WHERE state = 'order'",
    ),
    breaks(
        "available_tasks_are_in_line",
        "INSERT INTO progressor.running (slot, namespace, process_id, task_id, task_type, attempt,"
        " token, replica_id, leased_at, expires_at) SELECT slot, namespace, process_id, task_id,"
        " task_type, 1, 1, 1, now(), now() FROM progressor.gated WHERE state = 'order'",
        "leases_have_their_task",
    ),
    breaks(
        "available_tasks_hold_their_gates",
        "UPDATE progressor.gated SET gates = gates || '{another}' WHERE state = 'available'",
    ),
    breaks(
        "available_tasks_hold_their_gates",
        "UPDATE progressor.gate_holders SET is_reserved = true WHERE gate = 'at work'",
        "gates_are_held_by_whom_they_let_in",
    ),
    breaks(
        "gates_are_held_by_whom_they_let_in",
        "UPDATE progressor.gate_holders SET hold = 'task' WHERE hold = 'process'",
    ),
    breaks(
        "gates_are_held_by_whom_they_let_in",
        "UPDATE progressor.gate_holders SET task_id = 0 WHERE gate = 'mutex'",
    ),
    breaks(
        "gates_are_held_by_whom_they_let_in",
        "UPDATE progressor.gate_holders SET is_reserved = true WHERE gate = 'for good'",
    ),
    breaks(
        "gates_are_held_by_whom_they_let_in",
        "UPDATE progressor.processes SET status = 'error', detail = '' WHERE process_id ="
        " (SELECT process_id FROM progressor.gate_holders WHERE hold = 'process')",
    ),
    breaks(
        "gate_queues_know_who_is_in_them", "UPDATE progressor.gate_queues SET head_priority = 5"
    ),
    breaks("gate_queues_know_who_is_in_them", "UPDATE progressor.gate_queues SET head_task_id = 0"),
    breaks(
        "gate_queues_know_who_is_in_them",
        "UPDATE progressor.gate_queues SET oldest_at = oldest_at - interval '1 s'",
    ),
    breaks("gate_queues_know_who_is_in_them", "UPDATE progressor.gate_queues SET oldest_id = 0"),
    breaks(
        "gate_queues_know_who_is_in_them",
        "UPDATE progressor.gate_queues SET waits_on = 'at work'",
    ),
    breaks("gate_queues_know_who_is_in_them", "DELETE FROM progressor.gate_queues"),
    breaks(
        "gate_queues_know_who_is_in_them",
        "UPDATE progressor.gated SET gates = '{another}' WHERE queue IS NOT NULL",
    ),
    breaks(
        "gated_processes_say_so",
        "UPDATE progressor.processes SET is_gated = false WHERE is_gated",
    ),
    breaks(
        "gated_processes_say_so",
        "UPDATE progressor.processes p SET is_gated = false FROM progressor.gate_holders h"
        " WHERE h.gate = 'for good' AND h.process_id = p.process_id",
    ),
    breaks(
        "gated_processes_say_so",
        "UPDATE progressor.processes SET is_gated = false WHERE status = 'error'",
    ),
    breaks(
        "what_waits_for_its_process_is_in_its_way",
        "UPDATE progressor.gated SET state = 'process' WHERE state = 'order'",
    ),
    breaks("gate_queues_wait_for_full_gates", "UPDATE progressor.gates SET capacity = 9"),
    breaks("gate_queues_wait_for_full_gates", "UPDATE progressor.gate_queues SET waits_on = NULL"),
    breaks(
        "orders_wait_for_smaller_versions",
        "UPDATE progressor.gated SET order_version = '{1}' WHERE order_key IS NOT NULL",
    ),
    breaks(
        "instants_that_have_come_are_noticed",
        "UPDATE progressor.gated SET run_at = run_at - interval '1 d' WHERE state = 'time'",
    ),
    breaks(
        "processes_are_gated_for_a_reason",
        "INSERT INTO progressor.processes (slot, namespace, process_id, status, created_at,"
        " status_changed_at, init_task_id, is_gated)"
        " SELECT slot, namespace, 'another', status, created_at, status_changed_at, init_task_id,"
        " true FROM progressor.processes WHERE status = 'running' LIMIT 1",
        "processes_leave_init_with_their_task",
    ),
    breaks(
        "times_spent_add_up_to_a_life",
        "UPDATE progressor.tasks SET spent_us[2] = spent_us[2] + 1 WHERE spent_us IS NOT NULL",
    ),
    breaks(
        "times_spent_add_up_to_a_life",
        "UPDATE progressor.tasks SET spent_us = NULL WHERE spent_us IS NOT NULL",
    ),
    breaks(
        "times_spent_add_up_to_a_life",
        "UPDATE progressor.tasks SET spent_us = '{0,0,0,0,0,0}'"
        " WHERE status = 'waiting' AND constraints IS NOT NULL",
    ),
    # Those that are older than gates, of what constraints keep.
    breaks(
        "work_suits_its_process",
        "UPDATE progressor.processes SET init_task_id = 0 WHERE status = 'init'",
        "processes_leave_init_with_their_task",
    ),
    breaks(
        "broken_processes_wait_for_repair",
        "UPDATE progressor.processes SET status = 'error', detail = '' WHERE process_id ="
        " (SELECT process_id FROM progressor.gated WHERE state = 'order')",
    ),
    breaks(
        "what_waits_has_one_way_on",
        "UPDATE progressor.schedule SET due_at = now() WHERE due_at IS NULL",
    ),
    breaks("work_has_drawn_its_numbers", "ALTER SEQUENCE progressor.task_ids RESTART WITH 1"),
    breaks(
        "unfinished_tasks_have_their_place",
        "DELETE FROM progressor.gated WHERE state = 'order'",
        "processes_are_gated_for_a_reason",
    ),
)
