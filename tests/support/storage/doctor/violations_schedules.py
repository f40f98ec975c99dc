"""What breaks each invariant of schedules, over a schedule that has fired and one that calls."""

from tests.support.storage.doctor.violations import breaks


def again(ahead: str) -> str:
    """Return the statement that has what was fired fired again, so much later."""
    return (
        "INSERT INTO progressor.firings (slot, namespace, schedule_id, instant, cause, state,"  # noqa: S608  ours
        " overlap_policy, due_at, fired_at, started_at, process_slot, process_id, task_type,"
        " task_id)"
        f" SELECT slot, namespace, schedule_id, instant + interval '{ahead}', cause, state,"
        " overlap_policy, due_at, fired_at, started_at, process_slot, process_id, task_type,"
        " task_id"
        " FROM progressor.firings"
    )


VIOLATIONS_OF_SCHEDULES = (
    breaks(
        "schedules_fire_in_time",
        "UPDATE progressor.schedules SET (next_instant, next_at)"
        " = (next_instant - interval '2 minutes', next_at - interval '2 minutes')",
        "firings_come_before_the_next_one",
    ),
    breaks(
        "queued_firings_are_looked_at",
        "UPDATE progressor.firings SET (state, task_id, started_at) = ('queued', NULL, NULL)",
    ),
    breaks(
        "firings_come_before_the_next_one",
        "UPDATE progressor.schedules s SET (next_instant, next_at) = (f.instant, now() + '1 hour')"
        " FROM progressor.firings f WHERE f.schedule_id = s.schedule_id",
    ),
    breaks(
        "firings_start_one_task_each",
        again("-1 second"),
        "firings_have_their_schedule",
    ),
    breaks(
        "firings_name_the_tasks_they_started",
        "UPDATE progressor.tasks SET idempotency_key = 'another' WHERE task_type = 'init'",
    ),
    breaks(
        "firings_name_the_tasks_they_started",
        "UPDATE progressor.firings SET task_type = 'call'",
    ),
    breaks(
        "firings_have_their_schedule",
        "DELETE FROM progressor.schedules",
    ),
    breaks(
        "firings_have_their_schedule",
        "UPDATE progressor.schedules SET started_count = 0",
    ),
    breaks(
        "schedules_have_their_namespace",
        "INSERT INTO progressor.schedules SELECT (jsonb_populate_record(s,"
        " jsonb_build_object('namespace', 'nowhere'))).* FROM progressor.schedules s",
    ),
)
