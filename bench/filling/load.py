"""Fills a database by COPY: one transaction per table, without its indexes."""

import contextlib
import dataclasses
import datetime as dt
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg import sql

from bench.filling.plan import FAILURES, Plan
from bench.filling.rows import COLUMNS, Rows, numbers_by_slot
from bench.filling.templates import HEADER, TRAILER
from progressor.domain.processes.task import TaskType
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.rows.documents import failure_text

_LANES: Sequence[Sequence[str]] = (("tasks",), ("events", "processes", "schedule"))
"""Tables loaded one after the other, in as many connections: about the same work in each."""

_Connection = psycopg.Connection[Any]

_SESSION: Sequence[LiteralString] = (
    # After a crash the load is repeated; nothing else depends on its commits.
    "SET synchronous_commit = off",
    "SET maintenance_work_mem = '1GB'",
    # Both cores are busy, and /dev/shm, which parallel workers need, may be small.
    "SET max_parallel_maintenance_workers = 0",
    "SET statement_timeout = 0",
)

_CONSTRAINTS: LiteralString = """
    SELECT conname, pg_get_constraintdef(oid)
    FROM pg_constraint
    WHERE conrelid = %s::regclass AND contype IN ('p', 'u')"""
_INDEXES: LiteralString = """
    SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid)
    FROM pg_index i
    WHERE i.indrelid = %s::regclass
        AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid)"""

_CREATE_NAMESPACE: LiteralString = """
    INSERT INTO progressor.namespaces (name, revision, config, created_at, updated_at)
    VALUES (%s, 1, %s, now(), now())
    ON CONFLICT DO NOTHING"""

# Reserves a range of ids in the sequence; other sessions draw ids outside of it.
_RESERVE_IDS: LiteralString = """
    SELECT setval('progressor.task_ids', nextval('progressor.task_ids') + %(count)s) - %(count)s,
        setval('progressor.lease_tokens', greatest(
            nextval('progressor.lease_tokens'), (SELECT last_value FROM progressor.task_ids)))"""

_MAKE_FAILURE_ID: LiteralString = "SELECT {}.make_failure_id(%s, %s, %s)"
_NOTE_FAILURES: LiteralString = """
    SELECT {}.note_failures(
        array_agg(p.namespace), array_agg(p.process_id), array_agg(p.broken_at),
        array_agg(p.failure_reason), array_agg(%(failure)s::json))
    FROM progressor.processes p
    WHERE p.namespace = %(namespace)s AND p.failure_reason = %(reason)s AND p.detail IS NOT NULL
        AND p.process_id ^@ %(prefix)s"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    rows: int
    seconds: float
    seconds_by_part: dict[str, float]
    callable_count: int

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


def fill(conninfo: str, plan: Plan, *, processor: str = "127.0.0.1:1") -> Loaded:
    """Fill a database by a plan; it gets its schema if it has none. Blocks.

    An engine may use the database only if it is idle: the tables are locked until they have their
    indexes again. If the load fails or is killed, its current table is as before.

    Args:
        conninfo: A database; with empty tables the load is faster.
        plan: What to load.
        processor: The processor of the namespace, which is created if absent.
    """
    begun = time.monotonic()
    spent: dict[str, float] = {}
    with _timed(spent, "slots"):
        migrate(conninfo)
        slots = numbers_by_slot(plan)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        rows = _prepare(connection, plan, slots, processor)
    with ThreadPoolExecutor(len(_LANES)) as pool:
        failed = threading.Event()
        for lane in [
            pool.submit(_load_lane, conninfo, rows, each, spent, failed) for each in _LANES
        ]:
            lane.result()
    with _timed(spent, "counts"), psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_calling("SELECT {}.recount_processes(NULL, '1 day')"))
        for reason, message in FAILURES:
            named = {"namespace": plan.namespace, "prefix": f"{plan.prefix}-", "reason": reason}
            note = {"failure": _failure_json(message), **named}
            connection.execute(_calling(_NOTE_FAILURES), note)
    return Loaded(
        rows=sum(map(rows.row_count, COLUMNS)),
        seconds=time.monotonic() - begun,
        seconds_by_part={name: round(seconds, 1) for name, seconds in spent.items()},
        callable_count=plan.callable_count,
    )


def _prepare(
    connection: _Connection, plan: Plan, slots: Sequence[Sequence[int]], processor: str
) -> Rows:
    # The format of a namespace in the database: durations in seconds, as msgspec writes them.
    config = msgspec.json.encode({"processor_targets": [processor], "history_mode": "none"})
    connection.execute(_CREATE_NAMESPACE, (plan.namespace, config.decode()))
    row = connection.execute(_RESERVE_IDS, {"count": plan.task_count + 1}).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    now = connection.execute("SELECT now()").fetchone()
    assert now is not None, "a SELECT without FROM has a row"
    moment: dt.datetime = now[0]
    failure_ids = [
        str(row[0])
        for reason, message in FAILURES
        for row in connection.execute(
            _calling(_MAKE_FAILURE_ID), (plan.namespace, reason, _failure_json(message))
        )
    ]
    return Rows(
        plan=plan, slots=slots, first_task_id=row[0], failure_ids=failure_ids, now=moment
    )  # fmt: skip


def _calling(statement: LiteralString) -> sql.Composed:
    """Return a statement that calls a function of this release."""
    return sql.SQL(statement).format(sql.Identifier(Functions().schema))


def _failure_json(message: str) -> str:
    return failure_text(message, "", task_type=TaskType.CALL).decode()


def _load_lane(
    conninfo: str,
    rows: Rows,
    tables: Sequence[str],
    spent: dict[str, float],
    failed: threading.Event,
) -> None:
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for statement in _SESSION:
                connection.execute(statement)
            for table in tables:
                with _timed(spent, table):
                    _load_table(connection, rows, table, failed)
                with _timed(spent, f"{table} statistics"):
                    # Also builds the visibility map.
                    connection.execute(f"VACUUM (ANALYZE) progressor.{table}".encode())
    except BaseException:
        failed.set()
        raise


def _load_table(connection: _Connection, rows: Rows, table: str, failed: threading.Event) -> None:
    with connection.transaction():
        was_empty = _is_empty(connection, table)
        rebuild = _drop_indexes(connection, table)
        if was_empty:
            # A table that this transaction emptied can be filled with frozen rows and, if wal_level
            # is minimal, without WAL.
            connection.execute(f"TRUNCATE progressor.{table}".encode())
        options = "FORMAT BINARY, FREEZE" if was_empty else "FORMAT BINARY"
        statement = f"COPY progressor.{table} ({COLUMNS[table]}) FROM STDIN ({options})"
        with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(HEADER)
            for block in rows.of(table):
                if failed.is_set():
                    message = "another table could not be loaded"
                    raise RuntimeError(message)
                copy.write(block)
            copy.write(TRAILER)
        for definition in rebuild:
            connection.execute(definition)


def _is_empty(connection: _Connection, table: str) -> bool:
    found = connection.execute(f"SELECT FROM progressor.{table} LIMIT 1".encode()).fetchone()
    return found is None


def _drop_indexes(connection: _Connection, table: str) -> list[sql.Composed]:
    """Drop all indexes of a table; return what creates them again."""
    name = f"progressor.{table}"
    which = sql.Identifier("progressor", table)
    rebuild = []
    for constraint, definition in connection.execute(_CONSTRAINTS, (name,)).fetchall():
        named = sql.Identifier(constraint)
        connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(which, named))
        rebuild.append(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(which, named, sql.SQL(definition))
        )
    for index, definition in connection.execute(_INDEXES, (name,)).fetchall():
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.SQL(index)))
        rebuild.append(sql.Composed([sql.SQL(definition)]))
    return rebuild


@contextlib.contextmanager
def _timed(spent: dict[str, float], name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    spent[name] = time.monotonic() - begun
