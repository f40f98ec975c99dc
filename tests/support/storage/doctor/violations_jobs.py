"""What breaks each invariant of jobs, over what `populate_jobs` writes."""

from tests.support.storage.doctor.violations import Violations

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
