"""A run of the doctor on a database: one read-only connection, a short transaction per query.

Every query has a READ ONLY transaction of its own with a statement timeout, so it changes nothing
and holds back vacuum no longer than that. If a query takes too long, is not permitted to the role,
or names a missing table, its check is reported as not done; the other checks go on.
"""

import contextlib
import dataclasses
import datetime as dt
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row

from progressor import errors
from progressor.domain.processes.namespace import Namespace
from progressor.settings.sections import Database, ReplicaSettings
from progressor.storage.doctor import findings
from progressor.storage.doctor.findings import Finding, Verdict
from progressor.storage.postgres.pools import translated
from progressor.storage.postgres.writer import connection_string

_GRACE = dt.timedelta(seconds=5)

BY_INDEX: LiteralString = """
    SELECT set_config(s.name, s.value, true)
    FROM (VALUES
        ('enable_seqscan', 'off'), ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'),
        ('enable_material', 'off'), ('join_collapse_limit', '1'), ('jit', 'off')
    ) AS s (name, value)"""
"""Has the planner begin with the first table of a query and look up the others by their keys, row
by row, whatever it believes of their sizes."""

Query = LiteralString | sql.Composed


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRun:
    """What checks ask, and by whose settings they judge it."""

    connection: psycopg.Connection[DictRow]
    database: Database
    replica: ReplicaSettings
    timeout: dt.timedelta
    namespaces: tuple[Namespace, ...] = ()

    def rows(self, query: Query, *, by_index: bool = False, **parameters: object) -> list[DictRow]:
        """Ask one question, and return its rows; `by_index` as BY_INDEX says.

        Raises:
            psycopg.Error: PostgreSQL did not answer; see `undone`.
        """
        milliseconds = max(1, round(self.timeout.total_seconds() * 1000))
        with self._cut_when_silent(), self.connection.transaction():
            self.connection.execute(
                "SELECT set_config('statement_timeout', %s, true)", [str(milliseconds)]
            )
            if by_index:
                self.connection.execute(BY_INDEX)
            # None and not an empty mapping: a text without parameters may hold a percent sign.
            return self.connection.execute(query, parameters or None).fetchall()

    def row(self, query: Query, **parameters: object) -> DictRow:
        (row,) = self.rows(query, by_index=False, **parameters)
        return row

    @property
    def told_backend(self) -> int:
        """The backend's process id, as reported when the connection was accepted."""
        return self.connection.info.backend_pid

    @property
    def is_lost(self) -> bool:
        return self.connection.closed or self.connection.broken

    @contextlib.contextmanager
    def _cut_when_silent(self) -> Iterator[None]:
        """Close the connection if PostgreSQL does not answer at all, as when it is frozen."""
        patience = (self.timeout + _GRACE).total_seconds()
        with socket.socket(fileno=os.dup(self.connection.fileno())) as wire:
            watch = threading.Timer(patience, _shut, [wire])
            watch.daemon = True
            watch.start()
            try:
                yield
            finally:
                watch.cancel()
                watch.join()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing to look at. ``examine`` may raise whatever `DoctorRun.rows` raises."""

    group: str
    name: str
    examine: Callable[[DoctorRun], Verdict]

    def find(self, doctor_run: DoctorRun) -> Finding:
        """Look, and say what was found.

        Raises:
            StorageUnavailableError: The connection is lost.
        """
        try:
            verdict = self.examine(doctor_run)
        except psycopg.Error as error:
            if doctor_run.is_lost:
                why = str(error).strip() or type(error).__name__
                raise errors.StorageUnavailableError(why) from error
            verdict = undone(error, doctor_run.timeout)
        return Finding(group=self.group, check=self.name, **dataclasses.asdict(verdict))


def checks(group: str, **examine: Callable[[DoctorRun], Verdict]) -> tuple[Check, ...]:
    return tuple(Check(group=group, name=name, examine=look) for name, look in examine.items())


@contextlib.contextmanager
def open_run(
    dsn: str,
    *,
    database: Database,
    replica: ReplicaSettings,
    timeout: dt.timedelta,
    namespaces: tuple[Namespace, ...] = (),
) -> Iterator[DoctorRun]:
    """Connect, as a replica would, for as long as the context lasts. Blocks.

    Where no server takes writes, which a replica insists on, one that is read is better than none.

    Raises:
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    conninfo = connection_string(database, dsn, application="progressor doctor")
    with contextlib.ExitStack() as stack:
        with translated():
            try:
                connection = _connect(conninfo)
            except psycopg.OperationalError:
                connection = _connect(make_conninfo(conninfo, target_session_attrs="any"))
            stack.enter_context(connection)
        connection.read_only = True
        yield DoctorRun(
            connection=connection,
            database=database,
            replica=replica,
            timeout=timeout,
            namespaces=namespaces,
        )


def undone(error: psycopg.Error, timeout: dt.timedelta) -> Verdict:
    """Return why a question was not answered, although the connection still works."""
    why = (error.diag.message_primary or str(error)).strip()
    match error:
        case psycopg.errors.QueryCanceled():
            return findings.not_done(
                f"not answered within {timeout.total_seconds():g} s: {why}",
                advice="Give it longer with --timeout, or ask when the database is less busy.",
            )
        case psycopg.errors.InsufficientPrivilege():
            return findings.not_done(
                why,
                advice="Connect as the role of the engine, or as one with pg_read_all_data "
                "and pg_monitor.",
            )
        case (
            psycopg.errors.UndefinedTable()
            | psycopg.errors.UndefinedColumn()
            | psycopg.errors.InvalidSchemaName()
        ):
            return findings.not_done(
                why, advice="Run `progressor migrate`: the schema is not that of this release."
            )
        case _:
            return findings.not_done(why, advice="Look into the log of PostgreSQL.")


def _connect(conninfo: str) -> psycopg.Connection[DictRow]:
    return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None, row_factory=dict_row)


def _shut(wire: socket.socket) -> None:
    with contextlib.suppress(OSError):
        wire.shutdown(socket.SHUT_RDWR)
