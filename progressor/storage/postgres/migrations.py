"""Brings the tables to this release: numbered files, forward only, each once, in order.

A file is ``NNNN_pre_name.sql`` (before the new code runs) or ``NNNN_post_name.sql`` (once the old
code is gone). One transaction each, under an advisory lock, so that any number of replicas may
start at once. What was applied is remembered with its checksum: an applied file never changes.
"""

import dataclasses
import hashlib
import re

import psycopg

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage.postgres import statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import translated
from progressor.storage.postgres.writer import bound_idle_of, connection_string

_LOCK = 7_306_913
_OLDEST_SERVER = 150_000
_FILE = re.compile(r"^(\d{4})_(pre|post)_([a-z0-9_]+)\.sql$")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str
    checksum: str


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


def migrate(dsn: str) -> list[str]:
    """Apply what is missing, and deploy this release's functions. Blocks.

    Safe to repeat, and to run from several places at once.

    Returns:
        The names of the migrations applied now, oldest first.

    Raises:
        MigrationError: The database is ahead of this release, or a file it applied has changed.
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    functions = Functions()
    # Behind a transaction-mode pooler a statement prepared by name would meet others' of that name.
    with (
        translated(),
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection,
    ):
        bound_idle_of(connection)
        _prepare(connection)
        applied = [each.name for each in migrations() if _apply(connection, each)]
        _refuse_newer(connection)
        with connection.transaction(), connection.cursor() as cursor:
            functions.deploy(cursor)
    return applied


def migrate_configured(database: Database, dsn: str) -> list[str]:
    """Do as `migrate` does with the database of a configuration. Blocks.

    Args:
        database: Its settings.
        dsn: How to connect; the embedded one's where `database` has none.

    Raises:
        ConfigError: PostgreSQL refuses the login or the schema's statements, is too old, or its
            schema is not one that this release can work with: only an operator can change that.
        StorageUnavailableError: PostgreSQL cannot be reached.
    """
    try:
        return migrate(connection_string(database, dsn, application="progressor migrate"))
    except errors.MigrationError as error:
        raise errors.ConfigError(database.key, str(error)) from error
    except errors.StorageSchemaError as error:
        raise errors.ConfigError(database.key, f"PostgreSQL refused: {error.why}") from error


def _prepare(connection: psycopg.Connection) -> None:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        version = connection.info.server_version
        if version < _OLDEST_SERVER:
            message = f"PostgreSQL {version // 10_000} is too old: 15 or newer is needed"
            raise errors.MigrationError(message)
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            message = f"the database's encoding is {encoding}: UTF8 is needed"
            raise errors.MigrationError(message)
        connection.execute("CREATE SCHEMA IF NOT EXISTS progressor")
        connection.execute("""
            CREATE TABLE IF NOT EXISTS progressor.migrations (
                number     integer     NOT NULL PRIMARY KEY,
                name       text        NOT NULL,
                checksum   text        NOT NULL,
                applied_at timestamptz NOT NULL DEFAULT now()
            )""")


def _apply(connection: psycopg.Connection, migration: Migration) -> bool:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        row = connection.execute(
            "SELECT checksum FROM progressor.migrations WHERE number = %s", (migration.number,)
        ).fetchone()
        if row is not None:
            if row[0] != migration.checksum:
                message = (
                    f"migration {migration.name} was applied with another text: this database was "
                    "made by another build; use the release that made it, or another database"
                )
                raise errors.MigrationError(message)
            return False
        connection.execute(migration.text.encode())
        connection.execute(
            "INSERT INTO progressor.migrations (number, name, checksum) VALUES (%s, %s, %s)",
            (migration.number, migration.name, migration.checksum),
        )
        return True


def _refuse_newer(connection: psycopg.Connection) -> None:
    """Refuse a database that a later release has taken a `post` step on."""
    known = max(migration.number for migration in migrations())
    row = connection.execute(
        "SELECT name FROM progressor.migrations WHERE number > %s AND name LIKE '%%\\_post\\_%%'"
        " ORDER BY number LIMIT 1",
        (known,),
    ).fetchone()
    if row is not None:
        message = f"the database is ahead of this release: it has {row[0]}"
        raise errors.MigrationError(message)
