"""The writable server: how every connection finds it, and notices that it has become read-only.

The engine writes to it and reads from it. A demoted server or a standby may answer with old data,
so it counts as unavailable. Three things lead a connection to the writable server:

- `connection_string`, with which every connection is made: of several hosts, libpq picks the
  writable one.
- `refuse_read_only`, which asks the server itself: pools for each new connection, the listener also
  from time to time. libpq relies on what a server reports when it connects, and a pooler reports
  what was true when the pooler itself connected (PgBouncer issue 859). A writer notices by the
  error.
- The heartbeat, which writes all the time: when it gets this error, all pools close their
  connections to the server, including those that only read.
"""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import conninfo

from progressor.settings.sections import Database

IDLE_IN_TRANSACTION_SECONDS = 5
"""For how long PostgreSQL waits for the next statement of a transaction before it ends the session:
a client that leaves one open that long has frozen or died, and holds locks that others wait for."""

_BOUND_IDLE = b"""
    SELECT set_config(s.name, %s, false)
    FROM (VALUES ('idle_in_transaction_session_timeout')) s (name)
    WHERE current_setting(s.name) = '0'"""

# What we send names everything with its schema; this is for the functions and operators of
# PostgreSQL. Not through a pooler, whose sessions others use after us.
_BOUND_PATH = b"""
    SELECT set_config('search_path', 'pg_catalog, pg_temp', false)
    WHERE pg_backend_pid() = %s"""

_WRITER = "read-write"
_ATTRIBUTE = "target_session_attrs"


def connection_string(config: Database, dsn: str, *, application: str) -> str:
    """Return `dsn` with our timeouts and name; what the operator wrote there wins.

    Of several hosts a new connection leads to the one that takes writes, also after a failover.
    """
    given = conninfo.conninfo_to_dict(dsn)
    ours: dict[str, Any] = {
        "application_name": application,
        "connect_timeout": max(2, round(config.connect_timeout.total_seconds())),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
    }
    if _names_several(given):
        ours[_ATTRIBUTE] = _WRITER
    return conninfo.make_conninfo(**(ours | given))


def insists_on_writes(dsn: str) -> bool:
    """Return whether connections must lead to a server that takes writes.

    An operator who says to which servers to connect knows what may be there.
    """
    return conninfo.conninfo_to_dict(dsn).get(_ATTRIBUTE, _WRITER) == _WRITER


async def bound_idle(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Bound how long a transaction of a new connection may stand still.

    Not by a parameter of the connection, which a pooler would refuse; what an operator has set for
    the role or in the DSN stays.
    """
    await connection.execute(_BOUND_IDLE, [f"{IDLE_IN_TRANSACTION_SECONDS}s"])


def bound_idle_of(connection: psycopg.Connection[Any]) -> None:
    """Do as `bound_idle` does. Blocks."""
    connection.execute(_BOUND_IDLE, [f"{IDLE_IN_TRANSACTION_SECONDS}s"])


async def bound_path(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Let a new connection find nothing by its bare name but what PostgreSQL itself has."""
    await connection.execute(_BOUND_PATH, [connection.info.backend_pid])


async def refuse_read_only(connection: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
    """Ask a server whether it takes writes, and close a connection to one that does not.

    Raises:
        psycopg.errors.ReadOnlySqlTransaction: It does not.
    """
    row = await (await connection.execute("SHOW transaction_read_only")).fetchone()
    if row == ("on",):
        await connection.close()
        raise psycopg.errors.ReadOnlySqlTransaction("the server is read-only")


def _names_several(given: Mapping[str, Any]) -> bool:
    return "," in str(given.get("host") or given.get("hostaddr") or "")
