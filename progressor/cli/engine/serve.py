"""The command serve: one replica of the engine, or several behind one port."""

import logging

from progressor.cli.engine.hosting import host
from progressor.cli.engine.supervisor import count_of, supervise
from progressor.cli.input.options import DEFAULT_SETTINGS, Settings
from progressor.cli.input.signals import forever, run_loop
from progressor.cli.output.failures import ExitCode
from progressor.engine.engine import Engine

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
