"""The commands serve, one replica or several behind one port, and migrate."""

import logging
from typing import Annotated

from cyclopts import Parameter

from progressor import errors
from progressor.cli.engine.hosting import host
from progressor.cli.engine.supervisor import count_of, supervise
from progressor.cli.input.options import DEFAULT_SETTINGS, Json, Settings
from progressor.cli.input.signals import forever, run_loop
from progressor.cli.output.failures import ExitCode
from progressor.cli.output.output import show
from progressor.engine.engine import Engine
from progressor.settings.addresses import redact_dsn
from progressor.storage.postgres import migrations

_log = logging.getLogger(__name__)


def serve(*, settings: Settings = DEFAULT_SETTINGS) -> ExitCode:
    """Run an engine until SIGTERM or SIGINT drains it; a second signal ends it at once.

    Without a DSN it runs an embedded PostgreSQL. While PostgreSQL is unavailable, the engine waits
    for it and its health is NOT_SERVING. With --workers it runs several processes that share the
    port, each on one core; a client's connection stays with one of them.
    """
    config = settings.load()
    count = count_of(config.server.workers)
    if count > 1:
        return supervise(config, count)
    run_loop(host(config, work=_announce))
    return ExitCode.DONE


async def _announce(engine: Engine) -> None:
    where: dict[str, object] = {"addresses": engine.addresses, "database": engine.database}
    if engine.metrics_url:
        where["metrics"] = engine.metrics_url
    _log.info("engine listening", extra=where)
    await engine.serving.wait()
    _log.info("engine serves", extra=where)
    await forever()


def migrate(
    *,
    json: Json = False,
    settings: Annotated[Settings, Parameter(name="*")] = DEFAULT_SETTINGS,
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
