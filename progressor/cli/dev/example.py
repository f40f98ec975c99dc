"""The command example-processor: the processor of the example, for an engine elsewhere."""

import asyncio
import logging
from typing import Annotated

from progressor import errors
from progressor.cli.input.inputs import option
from progressor.cli.input.signals import run_loop, until_signal
from progressor.example.order import namespace, orders
from progressor.example.scenario import register
from progressor.sdk.client.client import Client
from progressor.sdk.processor.server import BIND_DEFAULT
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.settings.addresses import check_address
from progressor.telemetry.logs.setup import whole_log

_PAUSE_SECONDS = 1.0
_AWAY = (
    EngineUnavailableError,
    errors.StorageUnavailableError,
    errors.ReplicaStoppedError,
    errors.ShuttingDownError,
    errors.OverloadedError,
    errors.DeadlineExceededError,
)

_log = logging.getLogger(__name__)


def example_processor(
    *,
    bind: Annotated[str, option("Where to listen: host:port or unix:/path.")] = BIND_DEFAULT,
    engine: Annotated[
        str | None, option("An engine in which to create or update the namespace.")
    ] = None,
    target: Annotated[
        str | None, option("The address at which engines reach it, if not that of --bind.")
    ] = None,
) -> None:
    """Run the processor of the example's namespace, orders, until SIGTERM or SIGINT."""
    check_address("--bind", bind, port_min=0)
    for name, address in {"--engine": engine, "--target": target}.items():
        if address is not None:
            check_address(name, address, port_min=1)
    with whole_log(level="info", log_format="auto"):
        run_loop(_serve(bind, engine, target))


async def _serve(bind: str, engine: str | None, target: str | None) -> None:
    async def work() -> None:
        try:
            async with orders.running(bind) as address:
                _log.info("processor serves", extra={"address": address})
                if engine is not None:
                    await _register(engine, target or address)
                await asyncio.get_running_loop().create_future()
        except RuntimeError as error:
            raise errors.ConfigError("--bind", f"cannot listen at {bind}: {error}") from error

    await until_signal(work())


async def _register(engine: str, target: str) -> None:
    """Register with an engine that may still be starting; retries until it succeeds."""
    async with Client(engine) as client:
        while True:
            try:
                await register(client, namespace(target))
            except _AWAY as error:
                _log.warning("engine is unavailable", extra={"engine": engine, "error": str(error)})
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                _log.info("namespace registered", extra={"engine": engine, "target": target})
                return
