"""Partitions by slot, for databases in which one table would become too large to be vacuumed.

A database gets its partitions when it is created: the migrations make plain tables, and `partition`
replaces them while they are empty. Each partition has a range of slots, and as each key begins with
the slot, a look-up by key reads one partition.
"""

from typing import Any, LiteralString

import psycopg

from progressor import errors
from progressor.domain.processes.process import SLOT_COUNT

TABLES = ("processes", "tasks", "events")
"""The tables that hold nearly all bytes. Those of what waits and what runs stay small, and each
batch would pay for their partitions as much as for these."""
PARTITIONS_MIN, PARTITIONS_MAX = 2, 64

_COUNT: LiteralString = """
    SELECT count(*)
    FROM pg_catalog.pg_inherits
    WHERE inhparent = to_regclass('progressor.processes')"""

_INDEXES: LiteralString = """
    SELECT coalesce(
        'ALTER TABLE ' || i.indrelid::regclass || ' ADD CONSTRAINT ' || k.conname || ' '
            || pg_get_constraintdef(k.oid),
        pg_get_indexdef(i.indexrelid))
    FROM pg_catalog.pg_index i
    LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid
    WHERE i.indrelid = %s::regclass
    ORDER BY i.indexrelid"""

_OPTIONS: LiteralString = """
    SELECT coalesce(' WITH (' || array_to_string(reloptions, ', ') || ')', '')
    FROM pg_catalog.pg_class
    WHERE oid = %s::regclass"""

_Connection = psycopg.Connection[Any]


def count_partitions(connection: _Connection) -> int:
    """Return how many partitions the table of processes has; 0: it is a plain one."""
    row = connection.execute(_COUNT).fetchone()
    assert row is not None, "an aggregate returns a row"
    return int(row[0])


def partition(connection: _Connection, count: int) -> None:
    """Replace the empty tables by partitioned ones, in the caller's transaction.

    Safe to repeat.

    Raises:
        MigrationError: The tables have rows, or another number of partitions.
    """
    there = count_partitions(connection)
    if there == count:
        return
    if there:
        raise errors.MigrationError(
            f"the tables have {there} partitions, not {count}: the number is set when a database "
            "is created and cannot be changed"
        )
    for table in TABLES:
        _replace(connection, table, count)


def _replace(connection: _Connection, table: str, count: int) -> None:
    name, plain = f"progressor.{table}", f"progressor.{table}_plain"
    _run(connection, f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
    if _run(connection, f"SELECT FROM {name} LIMIT 1").fetchone() is not None:
        raise errors.MigrationError(
            f"{table} has rows: only the tables of a new database can be partitioned"
        )
    indexes = [each for (each,) in connection.execute(_INDEXES, [name]).fetchall()]
    ((options,),) = connection.execute(_OPTIONS, [name]).fetchall()
    _run(connection, f"ALTER TABLE {name} RENAME TO {table}_plain")
    _run(
        connection,
        f"CREATE TABLE {name} (LIKE {plain} INCLUDING ALL EXCLUDING INDEXES)"
        " PARTITION BY RANGE (slot)",
    )
    _run(connection, f"DROP TABLE {plain}")
    for statement in indexes:
        _run(connection, statement)
    # A partitioned table has no storage parameters.
    for number, (begin, end) in enumerate(slot_ranges(count)):
        _run(
            connection,
            f"CREATE TABLE {name}_{number:02} PARTITION OF {name}"
            f" FOR VALUES FROM ({begin}) TO ({end}){options}",
        )


def slot_ranges(count: int) -> list[tuple[str, str]]:
    """Return from which slot on and before which each partition has its rows."""
    limits = [str(SLOT_COUNT * number // count) for number in range(1, count)]
    return list(zip(["MINVALUE", *limits], [*limits, "MAXVALUE"], strict=True))


def _run(connection: _Connection, statement: str) -> psycopg.Cursor[Any]:
    # Made of our own names, and of definitions that the catalog has of our tables.
    return connection.execute(statement.encode())
