"""The command serve: one replica of the engine."""

import logging

from progressor import app
from progressor.cli.hosting import Engine, forever, host, run_loop
from progressor.cli.options import DEFAULT_SETTINGS, Settings

_log = logging.getLogger(__name__)


def serve(*, settings: Settings = DEFAULT_SETTINGS) -> None:
    """Run an engine until SIGTERM or SIGINT, which drain it; a second one ends it at once.

    Without a DSN it runs a PostgreSQL of its own. While PostgreSQL is away the engine waits for
    it and its health is NOT_SERVING.
    """
    run_loop(host(settings.load(), open_engine=app.engine, work=_announce))


async def _announce(engine: Engine) -> None:
    where = {"addresses": engine.addresses, "database": engine.database}
    _log.info("engine listens", extra=where)
    await engine.serving.wait()
    _log.info("engine serves", extra=where)
    await forever()
