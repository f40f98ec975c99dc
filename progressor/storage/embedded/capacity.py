"""How many connections PostgreSQL has for the pools of all replicas."""

from collections.abc import Mapping

import psycopg

from progressor.settings.sections import Database
from progressor.storage.embedded.settings import SETTINGS
from progressor.storage.postgres.pools import translated
from progressor.storage.postgres.writer import connection_string

# Superusers' own 3, and some for the tools and a person with psql.
_OTHERS = 13

_ALLOWED = """
    SELECT current_setting('max_connections')::integer
         - current_setting('superuser_reserved_connections')::integer
         - coalesce(current_setting('reserved_connections', true)::integer, 0)
"""


def room_for(connections: int) -> Mapping[str, str]:
    """Return the settings by which an embedded PostgreSQL has room for so many connections."""
    if connections + _OTHERS <= int(SETTINGS["max_connections"]):
        return {}
    return {"max_connections": str(connections + _OTHERS)}


def connections_allowed(database: Database, dsn: str) -> int:
    """Return how many connections PostgreSQL gives to ordinary roles in all. Blocks.

    Raises:
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    conninfo = connection_string(database, dsn, application="progressor capacity")
    with translated(), psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(_ALLOWED).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return int(row[0])
