"""What breaks each invariant of schedules, over a schedule that has run and one that calls."""

from tests.support.storage.doctor.violations import Violations


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
