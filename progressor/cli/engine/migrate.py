"""The command migrate, which starts without the engine."""

import time
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from progressor import errors
from progressor.cli.input.options import Json, Settings, option
from progressor.cli.output import note, show
from progressor.settings.addresses import redact_dsn
from progressor.storage.postgres import migrations
from progressor.storage.postgres.schema import partitions

_NOTE_SECONDS = 10.0


def migrate(
    *,
    partition_count: Annotated[
        int | None,
        Parameter(
            name="--partitions",
            help="partition the largest tables of a new database, by slot: 2 to 64 partitions each",
            validator=Number(gte=partitions.PARTITIONS_MIN, lte=partitions.PARTITIONS_MAX),
        ),
    ] = None,
    print_grants: Annotated[
        str | None,
        option(
            "Print the statements that let this role of PostgreSQL run replicas; change nothing."
        ),
    ] = None,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> None:
    """Migrate a database to the schema of this release; repeating it changes nothing.

    It waits for locks briefly and repeatedly, so that replicas go on meanwhile, and fails after 10
    minutes. An embedded PostgreSQL is migrated by its engine.
    """
    database = settings.load().database
    dsn = database.dsn
    if not dsn:
        raise errors.ConfigError(
            "database.dsn", "must be given: an embedded PostgreSQL is migrated by its engine"
        )
    if print_grants is not None:
        grants = migrations.grants_configured(database, dsn, role=print_grants)
        show({"database": redact_dsn(dsn), "grants": grants}, *grants, as_json=json)
        return
    wait = _Notes(as_json=json)
    applied = migrations.migrate_configured(
        database, dsn, wait=wait, partition_count=partition_count
    )
    words = [f"applied {name}" for name in applied] or ["nothing to apply"]
    show({"database": redact_dsn(dsn), "applied": applied}, *words, as_json=json)


class _Notes:
    """Tells what a migration waits for, from time to time."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._next_at = time.monotonic()

    def __call__(self, why: str, seconds: float) -> None:
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _NOTE_SECONDS
            note(why, as_json=self._as_json)
        time.sleep(seconds)
