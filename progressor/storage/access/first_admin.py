"""The first administrator, written directly: who has the database needs no other right."""

import secrets

import psycopg

from progressor import errors
from progressor.domain.access import tokens
from progressor.domain.access.rights import EVERYTHING, Role
from progressor.settings.sections import Database
from progressor.storage.access.audit import entry_of
from progressor.storage.postgres import statements
from progressor.storage.postgres.pools import translated
from progressor.storage.postgres.writer import connection_string

_SQL = statements.load("access/access")
AUTHOR = "progressor access init"


def create_first_admin(database: Database, dsn: str, name: str) -> str:
    """Create a token with the role admin in all namespaces, and return its text. Blocks.

    Raises:
        InvalidRequestError: The name is none.
        StorageUnavailableError: PostgreSQL cannot be reached, or the schema is not there.
    """
    if not tokens.is_token_name(name):
        raise errors.InvalidRequestError(errors.FieldViolation("--name", tokens.NAME_RULE))
    token_id, text, secret_hash = tokens.compose(secrets.token_bytes(8), secrets.token_bytes(32))
    token = {"token_id": token_id, "name": name, "secret_hash": secret_hash, "lifetime": None}
    binding = {"principal": f"token:{name}", "role": Role.ADMIN.value, "namespace": EVERYTHING}
    # The limits are for others: this is the way back in.
    audit = entry_of("AccessInit", principal=AUTHOR)
    common = {"now": None, "author": AUTHOR, "count_max": 2**62, "audit": audit}
    with (
        translated(),
        psycopg.connect(connection_string(database, dsn, application=AUTHOR)) as connection,
    ):
        connection.execute(_SQL["add_token"], token | common)
        connection.execute(_SQL["add_binding"], binding | common)
    return text
