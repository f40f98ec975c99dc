"""Two roles in PostgreSQL: the owner of the schema, who migrates it, and one that replicas run as.

The second reads and writes rows and calls functions; it creates and alters nothing.
"""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

from progressor import errors

_OWNER: LiteralString = """
    SELECT o.rolname, pg_has_role(o.oid, 'USAGE'), current_user = o.rolname
    FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_roles o ON o.oid = n.nspowner
    WHERE n.nspname = 'progressor'"""

_SCHEMAS: LiteralString = """
    SELECT f.nspname
    FROM pg_catalog.pg_namespace f
    JOIN pg_catalog.pg_namespace n ON n.nspname = 'progressor' AND n.nspowner = f.nspowner
    WHERE f.nspname = 'progressor' OR f.nspname ~ '^progressor_[0-9a-f]{12}$'
    ORDER BY f.nspname"""

_GUESTS: LiteralString = """
    SELECT DISTINCT r.rolname
    FROM pg_catalog.pg_namespace n
    CROSS JOIN LATERAL aclexplode(n.nspacl) a
    JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
    WHERE n.nspname = 'progressor' AND a.privilege_type = 'USAGE' AND a.grantee <> n.nspowner
    ORDER BY r.rolname"""

_GRANTS = (
    "GRANT USAGE ON SCHEMA {schemas} TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA progressor TO {role}",
    "REVOKE INSERT, UPDATE, DELETE ON progressor.migrations FROM {role}",
    "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA progressor TO {role}",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schemas} TO {role}",
    "{later} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role}",
    "{later} GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO {role}",
    "{later} GRANT EXECUTE ON FUNCTIONS TO {role}",
)
"""What a replica needs; the default privileges are for the tables of later releases, and
`share_functions` for their functions."""


def act_as_owner(connection: psycopg.Connection[Any]) -> None:
    """Let what the current transaction creates belong to the owner of the schema.

    So a superuser, or a member of that role, leaves nothing that the owner could not change later.
    """
    row = connection.execute(_OWNER).fetchone()
    if row is not None and not row[2]:
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(row[0])))


def may_change(connection: psycopg.Connection[Any]) -> bool:
    """Return whether this role owns the schema, or is a member of the role that does."""
    row = connection.execute(_OWNER).fetchone()
    return row is not None and bool(row[1])


def refuse_others(connection: psycopg.Connection[Any], *, why: str) -> None:
    """Refuse to change the schema as a role that must not.

    Raises:
        MigrationError: It belongs to another role; or it does not exist, and this role may not
            create it.
    """
    role = connection.execute(
        "SELECT current_user, has_database_privilege(current_database(), 'CREATE')"
    ).fetchone()
    assert role is not None, "a SELECT without FROM has one row"
    owner = connection.execute(_OWNER).fetchone()
    if owner is None:
        if not role[1]:
            raise errors.MigrationError(
                f"the database has no schema progressor, and the role {role[0]} is not allowed to "
                "create it: run `progressor migrate` as a role with CREATE on the database"
            )
    elif not owner[1]:
        raise errors.MigrationError(
            f"{why}, and the role {role[0]} does not own the schema progressor: run `progressor "
            f"migrate` as {owner[0]} first"
        )


def share_functions(cursor: psycopg.Cursor[Any], schema: str) -> None:
    """Let whoever may use the tables' schema use a new one of functions too."""
    for (name,) in cursor.execute(_GUESTS).fetchall():
        for statement in (
            "GRANT USAGE ON SCHEMA {} TO {}",
            "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {} TO {}",
        ):
            grant = sql.SQL(statement).format(sql.Identifier(schema), sql.Identifier(name))
            cursor.execute(grant)


def grants(connection: psycopg.Connection[Any], role: str) -> list[str]:
    """Return the statements that let a role run replicas, and nothing else.

    Raises:
        MigrationError: There is no schema yet.
    """
    owner = connection.execute(_OWNER).fetchone()
    if owner is None:
        raise errors.MigrationError(
            "the database has no schema progressor: run `progressor migrate` first"
        )
    names = [sql.Identifier(row[0]) for row in connection.execute(_SCHEMAS)]
    parts = {
        "schemas": sql.SQL(", ").join(names),
        "role": sql.Identifier(role),
        "later": sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} IN SCHEMA progressor").format(
            sql.Identifier(owner[0])
        ),
    }
    return [sql.SQL(grant).format(**parts).as_string(connection) + ";" for grant in _GRANTS]
