"""Runs an engine in this process until a signal comes, then drains it."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from progressor.cli.engine.memory import (
    Memory,
    allocators_trim,
    limit_allocator,
    resident_bytes,
    tame_collector,
)
from progressor.cli.input.signals import signals, until_left
from progressor.clock import SystemClock
from progressor.engine import engine as app
from progressor.settings.config import Config
from progressor.telemetry.logs.setup import whole_log

_log = logging.getLogger(__name__)


async def host(
    config: Config,
    *,
    work: Callable[[app.Engine], Coroutine[Any, Any, None]],
    open_engine: Callable[[Config], AbstractAsyncContextManager[app.Engine]] = app.engine,
    one_of_many: bool = False,
) -> None:
    """Run an engine and `work` until a signal or the end of `work`, then drain the engine.

    A second signal ends this process at once; other replicas collect its steps, as after a crash.
    If it is `one_of_many` that share a log, each line has the replica's name.

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
