"""How fast does one connection delete what is old, and what does it cost where nothing is?

python -m bench.retention --processes 300000
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from bench.filling.__main__ import LOADING
from bench.filling.load import fill
from bench.filling.plan import Plan
from bench.machine import commit, machine
from progressor.runtime.upkeep.retention import RANGE_PAGES
from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.postgres.functions import Functions
from progressor.storage.replicas.retention import EVENTS_MAX

_NEVER_SECONDS = 100 * 365 * 86_400.0
_FINISH: LiteralString = """
    UPDATE progressor.processes
    SET status = 'finished', finished_at = created_at
    WHERE status = 'running'"""
_PAGES: LiteralString = """
    SELECT pg_relation_size('progressor.tasks') / current_setting('block_size')::bigint"""
_TASKS: LiteralString = """
    SELECT d.deleted_count
    FROM {}.delete_old_tasks(NULL, %s, %s, ARRAY[%s], ARRAY[%s::double precision], %s) d"""
_PROCESSES: LiteralString = """
    SELECT d.deleted_count, d.more, d.reached_at
    FROM {}.delete_finished(NULL, %s, 0, %s, %s, %s) d"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows that were read or deleted in some seconds, in transactions of some milliseconds."""

    rows: int
    seconds: float
    longest_ms: float

    @property
    def per_s(self) -> int:
        return round(self.rows / self.seconds)


class _Database:
    def __init__(self, connection: psycopg.Connection[Any], plan: Plan, limit: int) -> None:
        self._connection, self._limit = connection, limit
        self._namespace = plan.namespace
        self._schema = sql.Identifier(Functions().schema)
        self._took: list[float] = []

    def _call(self, statement: LiteralString, *values: object) -> tuple[Any, ...]:
        begun_at = time.perf_counter()
        cursor = self._connection.execute(sql.SQL(statement).format(self._schema), values)
        [row] = cursor.fetchall()
        self._took.append(time.perf_counter() - begun_at)
        return tuple(row)

    def _measured(self, rows: int) -> _Rows:
        found = _Rows(rows=rows, seconds=sum(self._took), longest_ms=1000 * max(self._took))
        self._took.clear()
        return found

    def _value(self, statement: LiteralString) -> int:
        row = self._connection.execute(statement).fetchone()
        assert row is not None, "one value"
        return int(row[0])

    def tasks(self, age: float) -> _Rows:
        """Delete tasks older than an age, from all of the table; return how many, or were read."""
        count = self._value("SELECT count(*) FROM progressor.tasks")
        deleted = 0
        for first in range(0, self._value(_PAGES), RANGE_PAGES):
            last = self._limit
            while last == self._limit:
                [last] = self._call(
                    _TASKS, first, first + RANGE_PAGES, self._namespace, age, self._limit
                )
                deleted += last
        return self._measured(deleted or count)

    def processes(self) -> _Rows:
        self._connection.execute(_FINISH)
        self._connection.execute("VACUUM (ANALYZE) progressor.processes")
        deleted, more, reached_at = 0, True, None
        while more:
            count, more, reached_at = self._call(
                _PROCESSES, self._namespace, self._limit, EVENTS_MAX, reached_at
            )
            deleted += count
        return self._measured(deleted)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.retention", description=__doc__)
    parser.add_argument("--processes", type=int, default=300_000, metavar="N")
    parser.add_argument("--limit", type=int, default=500, help="scanner.retention_batch_max")
    parser.add_argument("--tasks", action="store_true", help="delete old tasks before processes")
    return parser.parse_args()


def main() -> None:
    """Fill a database of its own, delete, and print lines of JSON."""
    arguments = _arguments()
    plan = Plan(process_count=arguments.processes, timer_count=0)
    with (
        tempfile.TemporaryDirectory(prefix="progressor-retention-", dir="/var/tmp") as directory,
        EmbeddedPostgres(data_directory=Path(directory) / "data", settings=LOADING) as server,
    ):
        fill(server.conninfo, plan, processor="127.0.0.1:1")
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            database = _Database(connection, plan, arguments.limit)
            database.tasks(_NEVER_SECONDS)
            found = {"tasks read": database.tasks(_NEVER_SECONDS)}
            if arguments.tasks:
                found["tasks deleted"] = database.tasks(0)
            found["processes deleted"] = database.processes()
    for name, rows in found.items():
        line = {"name": name, **dataclasses.asdict(rows), "per_s": rows.per_s}
        line |= {"limit": arguments.limit, "commit": commit(), "machine": machine()}
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
