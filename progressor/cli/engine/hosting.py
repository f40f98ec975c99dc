"""Running an engine in this process until a signal comes, and draining it then."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from progressor.cli.engine.memory import (
    Memory,
    allocators_trim,
    limit_allocator,
    resident_bytes,
    tame_collector,
)
from progressor.cli.input.signals import signals, until_left
from progressor.clock import SystemClock
from progressor.settings.config import Config
from progressor.telemetry.logs.setup import whole_log

_log = logging.getLogger(__name__)


class Engine(Protocol):
    """What a command asks of a running engine."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, with the ports that were bound."""

    @property
    def metrics_url(self) -> str:
        """Where its metrics are read; empty: nowhere."""

    @property
    def database(self) -> str:
        """Which PostgreSQL it uses, without a password."""

    @property
    def serving(self) -> asyncio.Event:
        """Set once PostgreSQL is reached and health is SERVING."""

    async def failed(self) -> None:
        """Wait for the engine to break, and raise why."""


OpenEngine = Callable[[Config], AbstractAsyncContextManager[Engine]]
Work = Callable[[Engine], Coroutine[Any, Any, None]]


async def host(
    config: Config, *, open_engine: OpenEngine, work: Work, one_of_many: bool = False
) -> None:
    """Run an engine while `work` is at it, until a signal or the end of `work`, then drain.

    A second signal ends this process at once: what it leaves behind is collected, as after
    any crash. Where it is `one_of_many` with a log in common, each line has the replica's name.

    Raises:
        ExceptionGroup: `work` failed, or the engine broke.
    """
    name = config.replica.name if one_of_many else ""
    limit_allocator()
    leaving = asyncio.Event()
    with (
        whole_log(level=config.log.level, log_format=config.log.format, replica=name),
        signals(leaving),
    ):
        async with open_engine(config) as engine:
            tame_collector()
            memory = Memory(
                clock=SystemClock(),
                resident=resident_bytes,
                trim=allocators_trim(),
                collect=gc.collect,
            )
            await until_left(leaving, work(engine), engine.failed(), memory.run())
            _log.info("engine drains", extra={"addresses": engine.addresses})
        _log.info("engine stopped")
