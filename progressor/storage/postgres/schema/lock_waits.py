"""How a migration waits for locks: briefly, again and again, and saying for whom.

A statement that waits for the lock of a table makes everybody behind it wait too, for as long as
one reader stays in its transaction. So an attempt gives up after LOCK_SECONDS, before the functions
of the hot path give up waiting, and the traffic goes on until the next attempt.
"""

import datetime as dt
import time
from collections.abc import Callable
from typing import Any, LiteralString, TypeVar

import psycopg

from progressor import errors

Connection = psycopg.Connection[tuple[Any, ...]]

Wait = Callable[[str, float], None]
"""Called with what a migration waits for, and the seconds to let pass; what it raises ends it."""

LOCK_SECONDS = 0.2
"""Less than the 300 ms for which the functions of the hot path wait for a lock."""

PAUSE_SECONDS = 1.0
WAIT_SECONDS_MAX = 600.0
"""After so long the migration fails, and names who holds the lock."""

_BEHIND_AUTOVACUUM_SECONDS = 0.5
"""Longer than deadlock_timeout, after which PostgreSQL cancels an autovacuum that blocks a lock."""

_BLOCKERS: LiteralString = """
    SELECT a.pid, a.usename, nullif(a.application_name, ''),
        extract(epoch FROM clock_timestamp() - a.xact_start)::double precision
    FROM pg_catalog.pg_stat_activity a
    WHERE a.pid <> pg_backend_pid()
        AND (a.xact_start IS NULL OR a.xact_start < %(since)s)
        AND a.pid IN (
            SELECT l.pid
            FROM pg_catalog.pg_locks l
            JOIN pg_catalog.pg_class c ON c.oid = l.relation
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_catalog.pg_database d ON d.oid = l.database
            WHERE l.granted AND n.nspname = 'progressor' AND d.datname = current_database())
    UNION ALL
    SELECT NULL, x.owner, 'prepared transaction ' || x.gid,
        extract(epoch FROM clock_timestamp() - x.prepared)::double precision
    FROM pg_catalog.pg_prepared_xacts x
    WHERE x.database = current_database() AND x.prepared < %(since)s
    ORDER BY 4 DESC NULLS LAST
    LIMIT 3"""

_DEADLOCK: LiteralString = (
    "SELECT extract(epoch FROM current_setting('deadlock_timeout')::interval)::double precision"
)

Result = TypeVar("Result")


def sleep(_why: str, seconds: float) -> None:
    """Let the seconds pass, and say nothing."""
    time.sleep(seconds)


def with_locks(
    connection: Connection, attempt: Callable[[], Result], *, what: str, wait: Wait
) -> Result:
    """Do an `attempt`, which is a transaction, until it gets all its locks.

    Raises:
        StorageUnavailableError: It has not got them within WAIT_SECONDS_MAX.
    """
    gives_up_at = time.monotonic() + WAIT_SECONDS_MAX
    seconds = LOCK_SECONDS
    while True:
        began = _one(connection, "SELECT clock_timestamp()")
        try:
            with connection.transaction():
                bound_locks(connection, seconds)
                return attempt()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            found = connection.execute(_BLOCKERS, {"since": began}).fetchall()
        why = f"{what} waits for a lock that is held by {_named(found)}"
        if time.monotonic() >= gives_up_at:
            raise errors.StorageUnavailableError(f"{why}; end that session, and migrate again")
        wait(why, PAUSE_SECONDS)
        # A session without a role is one of PostgreSQL's own.
        behind_autovacuum = any(role is None for _, role, _, _ in found)
        seconds = LOCK_SECONDS
        if behind_autovacuum:
            seconds = _one(connection, _DEADLOCK) + _BEHIND_AUTOVACUUM_SECONDS


def bound_locks(connection: Connection, seconds: float) -> None:
    """Bound how long each statement of the current transaction waits for a lock."""
    connection.execute(
        "SELECT set_config('lock_timeout', %s, true)", [str(max(1, round(seconds * 1000)))]
    )


def _named(blockers: list[tuple[Any, ...]]) -> str:
    if not blockers:
        return "another session, which has ended meanwhile"
    return ", ".join(
        _session(pid, role, application, open_for) for pid, role, application, open_for in blockers
    )


def _session(
    pid: int | None, role: str | None, application: str | None, open_for: float | None
) -> str:
    facts = [
        application or ("autovacuum" if role is None else ""),
        f"role {role}" if role else "",
        "" if open_for is None else f"in a transaction for {dt.timedelta(seconds=round(open_for))}",
    ]
    told = ", ".join(fact for fact in facts if fact)
    return told if pid is None else f"pid {pid} ({told})"


def _one(connection: Connection, query: LiteralString) -> Any:  # noqa: ANN401  as the query says
    row = connection.execute(query).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row[0]
