"""Brings the tables to this release: numbered files, forward only, each once, in order.

A file is ``NNNN_pre_name.sql`` (before the new code runs) or ``NNNN_post_name.sql`` (once no
replica of another release is left). Each is one transaction, which waits for locks as `lock_waits`
says, or runs outside of one (`outside`). One process at a time applies them, so that any number of
replicas may start at once; where nothing is missing, nothing is locked, and only rows are written.
What was applied is remembered with its checksum: an applied file never changes.

The process that applies them holds a lock (`_GUARD`) on a connection of its own, in a transaction
without a snapshot: CREATE INDEX CONCURRENTLY would wait for one, and a pooler would lose a lock of
the session. Those that wait ask again and again, each time in a transaction that ends, for the same
reason.
"""

import contextlib
import dataclasses
import hashlib
import re
import time
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage.postgres import statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import translated
from progressor.storage.postgres.schema import deployment, outside, partitions, rights
from progressor.storage.postgres.schema.lock_waits import (
    WAIT_SECONDS_MAX,
    Connection,
    Wait,
    sleep,
    with_locks,
)
from progressor.storage.postgres.writer import bound_idle_of, connection_string

POLL_SECONDS = 0.5

_LOCK = 7_306_913
# Without a parameter: with one, the statement would keep its snapshot until the transaction ends.
_GUARD: LiteralString = "SELECT pg_try_advisory_xact_lock(7306915)"
_OLDEST_SERVER = 150_000
# transaction_timeout is new in PostgreSQL 17.
_UNBOUNDED: LiteralString = """
    SELECT set_config(s.name, '0', true)
    FROM pg_catalog.pg_settings s
    WHERE s.name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"""
_FILE = re.compile(r"^(\d{4})_(pre|post)_([a-z0-9_]+)\.sql$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str
    checksum: str

    @property
    def is_post(self) -> bool:
        return "_post_" in self.name

    @property
    def is_outside(self) -> bool:
        return self.text.startswith(outside.MARKER)


def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this release in order."""
    found: dict[int, Migration] = {}
    for file in sorted((statements.priv() / "migrations").glob("[0-9]*.sql")):
        match = _FILE.match(file.name)
        assert match is not None, f"{file.name} is not the name of a migration"
        number, text = int(match[1]), file.read_text("utf-8")
        assert number not in found, f"{found[number].name} and {file.stem} have the same number"
        checksum = hashlib.sha256(text.encode()).hexdigest()
        found[number] = Migration(number=number, name=file.stem, text=text, checksum=checksum)
    return tuple(found.values())


def migrate(dsn: str, *, wait: Wait = sleep, partition_count: int | None = None) -> list[str]:
    """Apply what is missing, and deploy this release's functions. Blocks.

    Safe to repeat, and to run from several places at once. It calls `wait` while it waits for
    others, and ends with what that raises.

    Args:
        dsn: How to connect.
        wait: Sleeps, and may tell why.
        partition_count: How many partitions the largest tables of a new database get; None leaves
            the tables as they are.

    Returns:
        The names of the migrations applied now, oldest first.

    Raises:
        MigrationError: The database is ahead of this release, or a file it applied has changed; or
            the functions there are not ours, or this role must not change the schema.
        StorageUnavailableError: PostgreSQL cannot be reached, or another session has kept a table
            locked for too long.
    """
    functions = Functions()
    with translated(), _connect(dsn) as connection:
        _refuse_unfit(connection)
        missing = _missing(connection)
        before = [each.name for each in missing if not each.is_post]
        is_ready = not before and _has_functions(connection, functions)
        if partition_count is None and is_ready and not (missing and rights.may_change(connection)):
            return []
        why = f"{before[0]} is missing" if before else "the functions of this release are missing"
        if is_ready and partition_count is not None:
            why = "tables are to be partitioned"
        rights.refuse_others(connection, why=why)
        with _alone(dsn, wait):
            return [*_change(connection, functions, dsn, wait, partition_count)]


def migrate_configured(
    database: Database, dsn: str, *, wait: Wait = sleep, partition_count: int | None = None
) -> list[str]:
    """Do as `migrate` does with the database of a configuration. Blocks.

    Args:
        database: Its settings.
        dsn: How to connect; the embedded one's where `database` has none.
        wait: As of `migrate`.
        partition_count: As of `migrate`.

    Raises:
        ConfigError: PostgreSQL refuses the login or the schema's statements, is too old, or its
            schema is not one that this release can work with: only an operator can change that.
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    with _configured(database):
        conninfo = connection_string(database, dsn, application="progressor migrate")
        return migrate(conninfo, wait=wait, partition_count=partition_count)


def grants_configured(database: Database, dsn: str, *, role: str) -> list[str]:
    """Return the statements that let a role of PostgreSQL run replicas. Blocks.

    Args:
        database: The settings of the database.
        dsn: How to connect.
        role: Its name, whether or not it exists.

    Raises:
        ConfigError: As `migrate_configured`, or the schema does not exist yet.
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    conninfo = connection_string(database, dsn, application="progressor migrate")
    with _configured(database), translated(), _connect(conninfo) as connection:
        return rights.grants(connection, role)


@contextlib.contextmanager
def _configured(database: Database) -> Iterator[None]:
    try:
        yield
    except errors.MigrationError as error:
        raise errors.ConfigError(database.key, str(error)) from error
    except errors.StorageSchemaError as error:
        raise errors.ConfigError(database.key, f"PostgreSQL refused: {error.why}") from error


def _connect(dsn: str) -> Connection:
    # Behind a transaction-mode pooler a statement prepared by name would meet others' of that name.
    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    bound_idle_of(connection)
    return connection


def _refuse_unfit(connection: Connection) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        message = f"PostgreSQL {version // 10_000} is too old: 15 or newer is needed"
        raise errors.MigrationError(message)
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        message = f"the database's encoding is {encoding}: UTF8 is needed"
        raise errors.MigrationError(message)


def _missing(connection: Connection) -> list[Migration]:
    """Return what was not applied yet.

    Raises:
        MigrationError: A later release has taken a `post` step, or a file has another text.
    """
    if connection.execute("SELECT to_regclass('progressor.migrations')").fetchone() == (None,):
        return list(migrations())
    applied = {
        number: (name, checksum)
        for number, name, checksum in connection.execute(
            "SELECT number, name, checksum FROM progressor.migrations ORDER BY number"
        )
    }
    ours = migrations()
    known = max(each.number for each in ours)
    for number, (name, _) in applied.items():
        if number > known and "_post_" in name:
            raise errors.MigrationError(f"the database is ahead of this release: it has {name}")
    for each in ours:
        if each.number in applied and applied[each.number][1] != each.checksum:
            message = (
                f"migration {each.name} was applied with another text: this database was "
                "made by another build; use the release that made it, or another database"
            )
            raise errors.MigrationError(message)
    return [each for each in ours if each.number not in applied]


def _has_functions(connection: Connection, functions: Functions) -> bool:
    """Return whether the functions are deployed, after noting that they are used again.

    Raises:
        MigrationError: What has their name is not what this release deploys.
    """
    deployment.note_use(connection, functions)

    def ask(query: LiteralString, **parameters: object) -> list[dict[str, Any]]:
        with connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, parameters).fetchall()

    if fault := deployment.fault_of(functions, ask):
        raise errors.MigrationError(
            f"the schema {functions.schema} is not what this release deploys: {fault}; find out "
            f"who made it, DROP SCHEMA {functions.schema} CASCADE, and run `progressor migrate`"
        )
    return deployment.is_deployed(functions, ask)


@contextlib.contextmanager
def _alone(dsn: str, wait: Wait) -> Iterator[None]:
    """Wait until no other process migrates, and keep the others from it.

    Raises:
        StorageUnavailableError: Another one has not ended within WAIT_SECONDS_MAX.
    """
    gives_up_at = time.monotonic() + WAIT_SECONDS_MAX
    with _connect(dsn) as guard:
        guard.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        while True:
            with guard.transaction():
                guard.execute(_UNBOUNDED)
                if guard.execute(_GUARD).fetchone() == (True,):
                    yield
                    return
            why = "another process migrates the database"
            if time.monotonic() >= gives_up_at:
                raise errors.StorageUnavailableError(why)
            wait(why, POLL_SECONDS)


def _change(
    connection: Connection,
    functions: Functions,
    dsn: str,
    wait: Wait,
    partition_count: int | None,
) -> Iterator[str]:
    """Apply what is still missing, and deploy the functions; yield the names of the files."""
    with_locks(connection, lambda: _prepare(connection), what="the first step", wait=wait)
    waiting: Migration | None = None
    for each in _missing(connection):
        if each.is_post and (others := _replicas_of_others(connection, functions)):
            waiting = waiting or each
            wait(f"{each.name} is left for later: {others} have another release", 0)
            continue
        if waiting is not None:
            raise errors.MigrationError(
                f"{each.name} needs {waiting.name}, which waits until no replica of an older "
                "release is left: finish that upgrade first"
            )
        if _apply(connection, each, dsn, wait):
            yield each.name
    if partition_count is not None:
        with_locks(
            connection,
            lambda: _partition(connection, partition_count),
            what="the partitions",
            wait=wait,
        )
    with_locks(connection, lambda: _deploy(connection, functions), what="the deployment", wait=wait)
    _has_functions(connection, functions)


def _partition(connection: Connection, count: int) -> None:
    rights.act_as_owner(connection)
    partitions.partition(connection, count)


def _prepare(connection: Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    rights.act_as_owner(connection)
    connection.execute("CREATE SCHEMA IF NOT EXISTS progressor")
    connection.execute("""
        CREATE TABLE IF NOT EXISTS progressor.migrations (
            number     integer     NOT NULL PRIMARY KEY,
            name       text        NOT NULL,
            checksum   text        NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        )""")


def _apply(connection: Connection, migration: Migration, dsn: str, wait: Wait) -> bool:
    """Apply a file; return whether another process was not faster."""

    def attempt() -> bool:
        # A release before `_GUARD` knows only this one.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        rights.act_as_owner(connection)
        noted = connection.execute(
            "INSERT INTO progressor.migrations (number, name, checksum) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (migration.number, migration.name, migration.checksum),
        )
        if noted.rowcount and not migration.is_outside:
            connection.execute(migration.text.encode())
        return bool(noted.rowcount)

    if migration.is_outside:
        with _connect(dsn) as onlooker:
            outside.run(connection, onlooker, migration.text, name=migration.name, wait=wait)
    return with_locks(connection, attempt, what=migration.name, wait=wait)


def _deploy(connection: Connection, functions: Functions) -> None:
    rights.act_as_owner(connection)
    with connection.cursor() as cursor:
        functions.deploy(cursor)
    deployment.note_use(connection, functions)
    deployment.remove_unused(connection, functions)


def _replicas_of_others(connection: Connection, functions: Functions) -> str:
    """Return the names of replicas of other releases that serve, or did an hour ago."""
    rows = connection.execute(
        "SELECT DISTINCT name FROM progressor.replicas WHERE functions <> %s ORDER BY name LIMIT 5",
        (functions.schema,),
    )
    return ", ".join(row[0] for row in rows)
