"""The invariants of storage over a test's database, and what of the past never changes."""

import datetime as dt
from collections.abc import Iterable
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor.storage.doctor.invariants.checks import INVARIANTS, Invariant
from progressor.storage.postgres import statements

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
_BREAKERS: LiteralString = (
    "SELECT corrupted_by FROM progressor.processes WHERE corrupted_by IS NOT NULL"
)


def broken_invariants(
    connection: psycopg.Connection[Any],
    *,
    at_rest: bool = False,
    of_gates: bool = False,
    now: dt.datetime | None = None,
) -> dict[str, list[Any]]:
    """Return the rows that break an invariant, by the invariant's name; empty: all hold.

    ``at_rest``: also the invariants that may be broken while a replica is at work; ``of_gates``: of
    these, those that are about gates. ``now``: what they take for now, under a clock that a test
    moves. Asks within the caller's transaction, if there is one; all at once and prepared, since
    tests ask after each deed.
    """
    asked = _OF_GATES if of_gates else _AT_REST if at_rest else _ALWAYS
    found: dict[str, list[Any]] = {}
    for invariant, *offending in connection.execute(asked, {"now": now}, prepare=True).fetchall():
        found.setdefault(invariant, []).append(tuple(offending))
    return found


def _all_of(invariants: Iterable[Invariant]) -> sql.Composed:
    return sql.SQL(" UNION ALL ").join(
        sql.SQL("SELECT {}, l.* FROM (\n{}\n) l").format(
            sql.Literal(invariant.name),
            sql.SQL(invariant.query.replace("now()", "coalesce(%(now)s::timestamptz, now())")),
        )
        for invariant in invariants
    )


# Composed once: a text so long takes longer to compose than to ask for.
_AT_REST = _all_of(INVARIANTS).as_bytes()
_OF_GATES = _all_of(
    invariant
    for invariant in INVARIANTS
    if invariant.name in statements.load("doctor/invariants/gates")
).as_bytes()
_ALWAYS = _all_of(invariant for invariant in INVARIANTS if not invariant.logged).as_bytes()


class Past:
    """What never changes: how tasks ended, and events, as long as their process is there.

    Only a task that broke its process may be run again.
    """

    def __init__(self) -> None:
        self._ended: dict[int, str] = {}
        self._breakers: set[int] = set()
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
            if task_id in known - self._breakers and ended.get(task_id) != was
        ]
        changed += [
            f"event {event} was {was}, is {events.get(event)}"
            for event, was in self._events.items()
            if int(event.split("/")[0]) in living and events.get(event) != was
        ]
        self._ended, self._events = ended, events
        self._breakers = {row[0] for row in connection.execute(_BREAKERS).fetchall()}
        return changed
