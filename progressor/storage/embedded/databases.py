"""Databases of one embedded PostgreSQL, for the cells that have no server of their own."""

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

_EXISTS = "SELECT FROM pg_database WHERE datname = %s"


def ensure_database(conninfo: str, name: str) -> str:
    """Create a database if it does not exist, and return how to connect to it. Blocks.

    Raises:
        psycopg.Error: The server is unavailable.
    """
    if conninfo_to_dict(conninfo)["dbname"] == name:
        return conninfo
    with psycopg.connect(conninfo, autocommit=True) as connection:
        if connection.execute(_EXISTS, [name]).fetchone() is None:
            create = sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name))
            connection.execute(create)
    return make_conninfo(conninfo, dbname=name)
