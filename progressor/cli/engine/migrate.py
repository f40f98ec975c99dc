"""The command migrate, which starts without the engine."""

from typing import Annotated

from cyclopts import Parameter

from progressor import errors
from progressor.cli.input.options import Json, Settings
from progressor.cli.output import show
from progressor.settings.addresses import redact_dsn
from progressor.storage.postgres import migrations


def migrate(
    *,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> None:
    """Migrate a database to the schema of this release; repeating it changes nothing.

    An embedded PostgreSQL is migrated by its engine.
    """
    database = settings.load().database
    dsn = database.dsn
    if not dsn:
        raise errors.ConfigError(
            "database.dsn", "must be given: an embedded PostgreSQL is migrated by its engine"
        )
    applied = migrations.migrate_configured(database, dsn)
    words = [f"applied {name}" for name in applied] or ["nothing to apply"]
    show({"database": redact_dsn(dsn), "applied": applied}, *words, as_json=json)
