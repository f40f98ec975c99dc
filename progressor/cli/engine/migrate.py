"""The command migrate, which starts without the engine."""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from progressor import errors
from progressor.cli.input.options import Json, OneCell, Settings, cells_of, option
from progressor.cli.output import ExitCode, note, report, show
from progressor.settings.addresses import redact_dsn
from progressor.settings.cells import key_of
from progressor.settings.config import Config
from progressor.settings.sections import Database
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
    cell: OneCell = None,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = Settings(),
) -> ExitCode:
    """Migrate a database to the schema of this release; repeating it changes nothing.

    It waits for locks briefly and repeatedly, so that replicas go on meanwhile, and fails after 10
    minutes. An embedded PostgreSQL is migrated by its engine. Cells are migrated one after the
    other; one that cannot be does not hold up the rest.
    """
    config = settings.load()
    chosen = cells_of(config, cell)
    for index, own in enumerate(chosen.values()):
        if not own.database.dsn:
            raise errors.ConfigError(
                f"{key_of(index)}.dsn" if config.cells else "database.dsn",
                "must be given: an embedded PostgreSQL is migrated by its engine",
            )
    if print_grants is not None:
        return _each(chosen, functools.partial(_grants, print_grants), config, as_json=json)
    ask = functools.partial(_migrated, _Notes(as_json=json), partition_count)
    return _each(chosen, ask, config, as_json=json)


def _each(
    chosen: Mapping[str, Config],
    ask: Callable[[Database], tuple[dict[str, object], list[str]]],
    config: Config,
    *,
    as_json: bool,
) -> ExitCode:
    """Ask the database of each cell, and print what it answers."""
    documents: list[dict[str, object]] = []
    code = ExitCode.DONE
    for name, own in chosen.items():
        try:
            document, lines = ask(own.database)
        except errors.ProgressorError as error:
            if not config.cells:
                raise
            # The others should not have to wait for it.
            note(f"cell {name}", as_json=as_json)
            code = report(error, as_json=as_json)
            continue
        if config.cells:
            document["cell"], lines = name, [f"{name}: {line}" for line in lines]
        documents.append(document)
        if not as_json:
            show(None, *lines, as_json=False)
    if as_json:
        show({"cells": documents} if config.cells else documents[0], as_json=True)
    return code


def _migrated(
    wait: "_Notes", partition_count: int | None, database: Database
) -> tuple[dict[str, object], list[str]]:
    applied = migrations.migrate_configured(
        database, database.dsn, wait=wait, partition_count=partition_count
    )
    lines = [f"applied {it}" for it in applied] or ["nothing to apply"]
    return {"database": redact_dsn(database.dsn), "applied": applied}, lines


def _grants(role: str, database: Database) -> tuple[dict[str, object], list[str]]:
    found = migrations.grants_configured(database, database.dsn, role=role)
    return {"database": redact_dsn(database.dsn), "grants": found}, list(found)


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
