"""The laws of storage: what holds of the tables at any moment, whoever dies and whatever is lost.

Each law is one statement of ``laws.sql``, so it sees one snapshot of a living system; what it
returns breaks it: namespace, process id, and a detail in words. A law that is not deep costs what
is at work and what waits; a deep one reads whole tables.
"""

import dataclasses
from typing import LiteralString

from psycopg import sql

from progressor.storage import findings, statements
from progressor.storage.examination import Check, Examination
from progressor.storage.findings import OFFENDERS_MAX, Verdict

GROUP = "laws"

_SQL = statements.load("laws")
# The offenders are counted where they are: they may be millions.
_COUNTED = sql.SQL(
    "SELECT l.namespace, l.process_id, l.detail, count(*) OVER () AS count"
    " FROM (\n{law}\n) l LIMIT {limit}"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One law: its statement's name, and what it says in a sentence."""

    name: str
    says: str
    deep: bool = False

    @property
    def query(self) -> LiteralString:
        """Return the statement whose rows break the law."""
        return _SQL[self.name]

    def examine(self, examination: Examination) -> Verdict:
        """Count what breaks the law, and name the first of it."""
        query = _COUNTED.format(law=sql.SQL(self.query), limit=sql.Literal(OFFENDERS_MAX))
        broken = examination.rows(query)
        if not broken:
            return findings.ok(self.says)
        count = findings.count_of(broken[0]["count"], "row")
        return findings.failed(
            f"{count} against the law: {self.says}",
            advice=(
                "Keep the rows and the logs, and report it: the engine never writes this, so ask "
                "who else writes into the schema progressor, and whether it was copied or restored."
            ),
            offenders=[
                f"{row['namespace']}/{row['process_id']}: {row['detail']}" for row in broken
            ],
        )


LAWS = (
    Law(
        name="leases_have_their_task",
        says="what is leased is a running task of the same token, attempt and type",
    ),
    Law(
        name="scheduled_tasks_are_recorded",
        says="what is scheduled is a waiting task of the same type and attempt",
    ),
    Law(
        name="work_suits_its_process",
        says="what waits or runs is of a process that is there, not finished, "
        "and in init for its init task alone",
    ),
    Law(
        name="broken_processes_wait_for_repair",
        says="a broken process waits for repairs, or for its timer run again, alone",
    ),
    Law(
        name="broken_processes_name_their_breaker",
        says="the task that broke a process ended in error",
    ),
    Law(
        name="what_waits_has_one_way_on",
        says="of what waits on a process the first in line is due, unless one is leased, "
        "and nothing else is",
    ),
    Law(
        name="work_has_drawn_its_numbers",
        says="no task and no lease has a number that the sequences have yet to give",
    ),
    Law(
        name="histories_end_where_the_process_says",
        says="the last event of a process at work is the one that the process names",
    ),
    Law(
        name="unfinished_tasks_have_their_place",
        says="a task that waits is scheduled, one that runs is leased",
        deep=True,
    ),
    Law(
        name="rows_have_their_process",
        says="every task and event is of a process, and every process of a namespace",
        deep=True,
    ),
    Law(
        name="event_ids_run_without_gaps",
        says="the event ids of a process run from 1 to its last",
        deep=True,
    ),
    Law(
        name="tasks_own_the_events_they_name",
        says="a task owns the events that its record names, and only a success has any",
        deep=True,
    ),
    Law(
        name="processes_leave_init_with_their_task",
        says="a process is in init for as long as its init task has not ended",
        deep=True,
    ),
    Law(
        name="keys_name_one_task",
        says="an idempotency key names one task of its process",
        deep=True,
    ),
    Law(
        name="successes_were_tried",
        says="a task succeeds only after it was begun",
        deep=True,
    ),
)


def checks(*, deep: bool) -> tuple[Check, ...]:
    """Return the laws as checks: those that are cheap, or all."""
    return tuple(
        Check(group=GROUP, name=law.name, examine=law.examine)
        for law in LAWS
        if deep or not law.deep
    )
