"""Two roles: one that owns the schema and migrates it, and one that replicas run as."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage.postgres import statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import grants_configured, migrate
from progressor.storage.postgres.schema import rights
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import execute, find, role


class Roles(NamedTuple):
    """How to connect to one database as each of them."""

    superuser: str
    owner: str
    runtime: str


@contextlib.contextmanager
def two_roles(cluster: Cluster) -> Iterator[Roles]:
    """Return a database that one role has migrated and the other one may use."""
    conninfo = cluster.create_database()
    with role(conninfo, "rights_owner") as owner, role(conninfo, "rights_runtime") as runtime:
        database = Database(dsn=owner)
        execute(conninfo, f"GRANT CREATE ON DATABASE {_name(conninfo)} TO rights_owner")
        migrate(owner)
        execute(owner, *grants_configured(database, owner, role="rights_runtime"))
        yield Roles(conninfo, owner, runtime)
    cluster.drop_database(conninfo)


@pytest.fixture
def roles(cluster: Cluster) -> Iterator[Roles]:
    with two_roles(cluster) as roles:
        yield roles


def _name(conninfo: str) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(conninfo)["dbname"])


def owners(conninfo: str) -> set[str]:
    """Return who owns our schemas, and what is in them."""
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute("""
            SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname ~ '^progressor'
            UNION
            SELECT relowner::regrole::text FROM pg_class
            WHERE relnamespace::regnamespace::text ~ '^progressor'
            UNION
            SELECT proowner::regrole::text FROM pg_proc
            WHERE pronamespace::regnamespace::text ~ '^progressor'""").fetchall()
    return {row[0] for row in rows}


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Functions:
    """Have other functions and one more table from now on."""
    for file in statements.priv().rglob("*.sql"):
        copy = tmp_path / file.relative_to(statements.priv())
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text("utf-8")
        copy.write_text(text + "-- next\n" if copy.stem == "merge_json" else text, "utf-8")
    more = "CREATE TABLE progressor.more (n integer); CREATE SEQUENCE progressor.numbers"
    (tmp_path / "migrations" / "0999_pre_more.sql").write_text(more, "utf-8")
    monkeypatch.setattr(statements, "priv", lambda: tmp_path)
    return Functions()


def test_the_runtime_role_starts_without_changing_anything(roles: Roles) -> None:
    assert migrate(roles.runtime) == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE progressor.mine ()",
        "ALTER TABLE progressor.processes ADD COLUMN mine integer",
        "DROP TABLE progressor.events",
        "CREATE SCHEMA mine",
        "UPDATE progressor.migrations SET checksum = ''",
        f"CREATE FUNCTION {Functions().schema}.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    ],
)
def test_the_runtime_role_changes_no_schema(roles: Roles, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(roles.runtime, statement)


def test_the_runtime_role_is_told_who_migrates(roles: Roles, next_release: Functions) -> None:
    with pytest.raises(errors.MigrationError) as refused:
        migrate(roles.runtime)

    assert str(refused.value) == (
        "0999_pre_more is missing, and the role rights_runtime does not own the schema progressor: "
        "run `progressor migrate` as rights_owner first"
    )
    assert next_release.schema not in str(refused.value)


@pytest.mark.parametrize("by", ["owner", "superuser"])
def test_a_later_release_needs_no_new_grants(
    roles: Roles, next_release: Functions, by: str
) -> None:
    applied = migrate(getattr(roles, by))

    assert applied == ["0999_pre_more"]
    assert migrate(roles.runtime) == []
    execute(
        roles.runtime,
        "INSERT INTO progressor.more VALUES (nextval('progressor.numbers'))",
        f"SELECT {next_release.schema}.merge_json('[1]', '[2]')",
    )
    assert owners(roles.superuser) == {"rights_owner"}


def test_a_missing_functions_schema_is_told(roles: Roles) -> None:
    execute(roles.owner, f"DROP SCHEMA {Functions().schema} CASCADE")

    with pytest.raises(errors.MigrationError, match="the functions of this release are missing"):
        migrate(roles.runtime)


def test_a_planted_schema_is_not_run(roles: Roles) -> None:
    """Anyone who may create schemas can create the one of a release that is not there yet."""
    schema = Functions().schema
    with role(roles.superuser, "rights_mallory") as mallory:
        execute(
            roles.superuser,
            f"DROP SCHEMA {schema} CASCADE",
            f"GRANT CREATE ON DATABASE {_name(roles.superuser)} TO rights_mallory",
        )
        execute(
            mallory,
            f"CREATE SCHEMA {schema}",
            f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC",
            f"CREATE FUNCTION {schema}.draw_replica_id() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
        )
        for conninfo in roles:
            with pytest.raises(errors.MigrationError, match="belongs to the role rights_mallory"):
                migrate(conninfo)
        found = find(roles.runtime, "functions")

    assert "belongs to the role rights_mallory" in found.words


def test_the_doctor_tells_the_role(roles: Roles) -> None:
    words = [find(conninfo, "roles").words for conninfo in roles]

    assert words == [
        "postgres is a superuser, which replicas do not need",
        "rights_owner owns the schema, which only `progressor migrate` needs",
        "rights_runtime reads and writes rows, and must not change the schema",
    ]


def test_without_a_schema_there_is_nothing_to_grant(cluster: Cluster) -> None:
    bare = cluster.create_database()

    with pytest.raises(errors.ConfigError, match="run `progressor migrate` first"):
        grants_configured(Database(dsn=bare), bare, role="runtime")


def test_a_name_is_quoted(roles: Roles) -> None:
    granted = grants_configured(Database(dsn=roles.owner), roles.owner, role='odd "role"; x')

    assert all('TO "odd ""role""; x";' in it or 'FROM "odd ""role""; x";' in it for it in granted)
    assert len(granted) == len(rights._GRANTS)
