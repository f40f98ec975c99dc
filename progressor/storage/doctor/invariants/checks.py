"""The invariants of storage: what holds for the tables at all times, despite crashes and losses.

Each invariant is one statement of ``*.sql``, so it sees one snapshot of a living system; what it
returns breaks it: namespace, the id of a process or schedule (empty where it is about none), and a
detail in words. An invariant that is not deep costs what is at work and what waits; a
deep one reads whole tables. What some invariants forbid may be there for a moment, while a replica
is at it: they are asked again and again, and only what is found each time breaks them.
"""

import dataclasses
import time
from typing import Final, LiteralString

from psycopg import sql
from psycopg.rows import DictRow

from progressor.storage.doctor import findings
from progressor.storage.doctor.environment.work import see_replicas
from progressor.storage.doctor.findings import OFFENDERS_MAX, Verdict
from progressor.storage.doctor.run import Check, DoctorRun
from progressor.storage.postgres import statements

GROUP = "invariants"

LOOKS: Final = 20
"""How often an invariant is asked again that may be broken for a moment: for 10 s. What a replica
has at hand it sees to within milliseconds, and the scan to what a dead one has left behind within
two scans, 2 s with the defaults."""

PAUSE_SECONDS: Final = 0.5
SUSPECTS_MAX: Final = 1000

_SQL = (
    statements.load("doctor/invariants/processes")
    | statements.load("doctor/invariants/gates")
    | statements.load("doctor/invariants/jobs")
    | statements.load("doctor/invariants/schedules")
)
# The offenders are counted where they are: they may be millions.
_COUNTED = sql.SQL(
    "SELECT l.namespace, l.process_id, l.detail, count(*) OVER () AS count"
    " FROM (\n{invariant}\n) l LIMIT {limit}"
)
# The same ones each time, should there be more.
_ORDERED = sql.SQL(
    "SELECT l.namespace, l.process_id, l.detail FROM (\n{invariant}\n) l"
    " ORDER BY 1, 2, 3 LIMIT {limit}"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One invariant: its statement's name, and what it says in a sentence.

    ``lasting``: what it forbids may be there for a moment, while a replica is at it; ``logged`` is
    what such a replica logs that cannot see to it.
    """

    name: str
    says: str
    deep: bool = False
    lasting: bool = False
    logged: str = "gates not promoted; retrying"

    @property
    def query(self) -> LiteralString:
        """Return the statement whose rows break the invariant."""
        return _SQL[self.name]

    def examine(self, doctor_run: DoctorRun) -> Verdict:
        """Count what breaks the invariant, and name the first of it. May block for LOOKS pauses."""
        if self.lasting:
            return self._examine_for_long(doctor_run)
        query = _COUNTED.format(invariant=sql.SQL(self.query), limit=sql.Literal(OFFENDERS_MAX))
        broken = doctor_run.rows(query)
        if not broken:
            return findings.ok(self.says)
        return self._broken(
            broken[0]["count"],
            [_words(row) for row in broken],
            advice=(
                "Keep the rows and the logs, and report it: the engine never writes this, so ask "
                "who else writes into the schema progressor, and whether it was copied or restored."
            ),
        )

    def _examine_for_long(self, doctor_run: DoctorRun) -> Verdict:
        query = _ORDERED.format(invariant=sql.SQL(self.query), limit=sql.Literal(SUSPECTS_MAX))
        suspects = {_words(row) for row in doctor_run.rows(query)}
        for _ in range(LOOKS):
            if not suspects:
                return findings.ok(self.says)
            time.sleep(PAUSE_SECONDS)
            suspects &= {_words(row) for row in doctor_run.rows(query)}
        if not suspects:
            return findings.ok(self.says)
        if not see_replicas(doctor_run).serving:
            return findings.not_done(
                f"{findings.count_of(len(suspects), 'row')} to be seen to by a replica, and none "
                f"is serving: {self.says}",
                advice="Start a replica, and ask again.",
            )
        return self._broken(
            len(suspects),
            sorted(suspects),
            advice=(
                "The replicas should have repaired this within seconds: look in their logs for the "
                f"reason (`{self.logged}`), end any session that keeps rows locked, "
                "and report a bug if there is none."
            ),
        )

    def _broken(self, count: int, offenders: list[str], *, advice: str) -> Verdict:
        return findings.failed(
            f"{findings.count_of(count, 'row')} violate the invariant: {self.says}",
            advice=advice,
            offenders=offenders,
        )


INVARIANTS = (
    Invariant(
        name="leases_have_their_task",
        says="what is leased is a running task of the same token, attempt and type",
    ),
    Invariant(
        name="scheduled_tasks_are_recorded",
        says="what is scheduled is a waiting task of the same type and attempt",
    ),
    Invariant(
        name="work_suits_its_process",
        says="what waits or runs is of a process that is there, not finished, "
        "and in init for its init task alone",
    ),
    Invariant(
        name="broken_processes_wait_for_repair",
        says="a broken process waits for repairs, or for its timer run again, alone",
    ),
    Invariant(
        name="broken_processes_name_their_breaker",
        says="the task that broke a process ended in error",
    ),
    Invariant(
        name="what_waits_has_one_way_on",
        says="of what waits on a process the first in line is due, unless one is leased, "
        "and nothing else is",
    ),
    Invariant(
        name="work_has_drawn_its_numbers",
        says="no task and no lease has a number that the sequences have yet to give",
    ),
    Invariant(
        name="histories_end_where_the_process_says",
        says="the last event of a process at work is the one that the process names",
    ),
    Invariant(
        name="gates_count_their_holders",
        says="a gate counts as many holders as it has",
    ),
    Invariant(
        name="gates_have_room_for_their_holders",
        says="a gate has no more holders than places, but from before its capacity was lowered",
    ),
    Invariant(
        name="gated_tasks_are_recorded",
        says="what waits for its constraints is a task that has some, and has not ended",
    ),
    Invariant(
        name="available_tasks_are_in_line",
        says="a task with constraints is scheduled or leased exactly while it is available",
    ),
    Invariant(
        name="available_tasks_hold_their_gates",
        says="an available task holds all its gates",
    ),
    Invariant(
        name="gates_are_held_by_whom_they_let_in",
        says="a gate is held by an available task or a process at work, or reserved by one in line",
    ),
    Invariant(
        name="gate_queues_know_who_is_in_them",
        says="a line knows who is next and who is oldest in it, and waits for one of its gates",
    ),
    Invariant(
        name="gated_processes_say_so",
        says="a process says that it is gated where gates are to be looked at with it",
    ),
    Invariant(
        name="what_waits_for_its_process_is_in_its_way",
        says="a task that waits for its process could not run there now",
    ),
    Invariant(
        name="gate_queues_wait_for_full_gates",
        says="a line waits for a gate that is full",
        lasting=True,
    ),
    Invariant(
        name="orders_wait_for_smaller_versions",
        says="a task that waits for its order has a smaller version before it",
        lasting=True,
    ),
    Invariant(
        name="instants_that_have_come_are_noticed",
        says="no task waits for an instant that has passed",
        lasting=True,
    ),
    Invariant(
        name="jobs_count_their_nodes",
        says="a job that runs counts its nodes by their states as they are",
    ),
    Invariant(
        name="nodes_wait_for_their_predecessors",
        says="a node counts the predecessors that are not done, and waits while there are any",
    ),
    Invariant(
        name="nodes_are_skipped_for_a_cause",
        says="a node is skipped exactly if one that it depends on has failed, which it names",
    ),
    Invariant(
        name="nodes_say_what_their_followers_do",
        says="a node runs while its follower does, and has ended as that has",
    ),
    Invariant(
        name="ready_nodes_wait_for_room",
        says="a node that is ready is started, as long as there is room for it",
    ),
    Invariant(
        name="jobs_that_come_to_their_end_are_joined",
        says="the leader of a job has a join exactly once no node is unfinished",
    ),
    Invariant(
        name="jobs_are_joined_once",
        says="a join that waits or runs is that of its job, which runs",
    ),
    Invariant(
        name="jobs_run_as_long_as_their_leaders",
        says="a job that runs has a leader that has not ended",
    ),
    Invariant(
        name="jobs_are_tended",
        says="the upkeep of every job is done in time",
        lasting=True,
        logged="job upkeep failed; retrying",
    ),
    Invariant(
        name="deadlines_of_jobs_are_noticed",
        says="no job runs whose deadline has passed",
        lasting=True,
        logged="job upkeep failed; retrying",
    ),
    Invariant(
        name="schedules_run_in_time",
        says="no schedule has been due for 10 s",
        lasting=True,
        logged="schedules not run",
    ),
    Invariant(
        name="queued_runs_are_looked_at",
        says="a run is queued only while another one of its schedule is at work",
        lasting=True,
        logged="scan failed",
    ),
    Invariant(
        name="schedule_runs_come_before_the_next_one",
        says="the runs of a schedule come before its next one",
        deep=True,
    ),
    Invariant(
        name="unfinished_tasks_have_their_place",
        says="a task that waits is scheduled or kept by its constraints, one that runs is leased",
        deep=True,
    ),
    Invariant(
        name="rows_have_their_process",
        says="every task and event is of a process, and every process of a namespace",
        deep=True,
    ),
    Invariant(
        name="event_ids_run_without_gaps",
        says="the event ids of a process run from 1 to its last",
        deep=True,
    ),
    Invariant(
        name="tasks_own_the_events_they_name",
        says="a task owns the events that its record names, and only a success has any",
        deep=True,
    ),
    Invariant(
        name="processes_leave_init_with_their_task",
        says="a process is in init for as long as its init task has not ended",
        deep=True,
    ),
    Invariant(
        name="keys_name_one_task",
        says="an idempotency key names one task of its process",
        deep=True,
    ),
    Invariant(
        name="successes_were_tried",
        says="a task succeeds only after it was begun",
        deep=True,
    ),
    Invariant(
        name="processes_are_gated_for_a_reason",
        says="a process that says that it is gated has to do with gates",
        deep=True,
    ),
    Invariant(
        name="times_spent_add_up_to_a_life",
        says="what a task with constraints has spent on each cause adds up to its life",
        deep=True,
    ),
    Invariant(
        name="ended_jobs_say_how_their_leaders_ended",
        says="a job has ended as its leader has, and every leader has a job",
        deep=True,
    ),
    Invariant(
        name="job_rows_have_their_leader",
        says="every job is of a leader, and every node of a job",
        deep=True,
    ),
    Invariant(
        name="ended_jobs_leave_nothing_to_begin",
        says="a job that has ended has nothing left to begin, and counts its nodes as they are",
        deep=True,
    ),
    Invariant(
        name="node_ordinals_run_without_gaps",
        says="the nodes of a job are numbered from 1 without gaps, and no two have one name",
        deep=True,
    ),
    Invariant(
        name="edges_are_known_at_both_ends",
        says="an edge of a job is known to both its nodes, once",
        deep=True,
    ),
    Invariant(
        name="followers_at_work_are_nodes_that_run",
        says="each unfinished follower of a running job is one of its running nodes",
        deep=True,
    ),
    Invariant(
        name="schedule_runs_start_one_task_each",
        says="what a run of a schedule starts was started by it alone",
        deep=True,
    ),
    Invariant(
        name="schedule_runs_name_the_tasks_they_started",
        says="the task that a run names bears the schedule's id in its key",
        deep=True,
    ),
    Invariant(
        name="schedule_runs_have_their_schedule",
        says="every run is of a schedule, which counts it",
        deep=True,
    ),
    Invariant(
        name="schedules_have_their_namespace",
        says="every schedule is of a namespace",
        deep=True,
    ),
)


def checks(*, deep: bool) -> tuple[Check, ...]:
    """Return the invariants as checks: those that are cheap, or all."""
    return tuple(
        Check(group=GROUP, name=invariant.name, examine=invariant.examine)
        for invariant in INVARIANTS
        if deep or not invariant.deep
    )


def _words(row: DictRow) -> str:
    where = "/".join(filter(None, (row["namespace"], row["process_id"])))
    return f"{where}: {row['detail']}"
