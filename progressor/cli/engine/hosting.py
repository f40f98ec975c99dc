"""Running an engine in this process: signals, drain, and what is done meanwhile."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from progressor.cli.engine.memory import (
    Memory,
    allocators_trim,
    limit_allocator,
    resident_bytes,
    tame_collector,
)
from progressor.clock import SystemClock
from progressor.settings.config import Config
from progressor.telemetry.logs.setup import whole_log

try:
    from uvloop import new_event_loop
except ImportError:  # pragma: no cover  # asyncio's own loop does as well
    from asyncio import new_event_loop  # type: ignore[assignment]

# timeout(1) and some supervisors send a signal to the process and again to its group.
_ECHO_SECONDS = 0.25

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


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` in an event loop of its own, uvloop where installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


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
            await _until_left(leaving, work(engine), engine.failed(), memory.run())
            _log.info("engine drains", extra={"addresses": engine.addresses})
        _log.info("engine stopped")


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a signal comes, which cancels it; a second one ends us.

    Raises:
        ExceptionGroup: `work` failed.
    """
    leaving = asyncio.Event()
    with signals(leaving):
        await _until_left(leaving, work)


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


async def _until_left(
    leaving: asyncio.Event,
    work: Coroutine[Any, Any, None],
    *watch: Coroutine[Any, Any, None],
) -> None:
    # Not wrapped in coroutines: one that is cancelled before it begins never awaits what it wraps.
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work, name="work")
        working.add_done_callback(lambda _: leaving.set())
        tasks = [working, *(group.create_task(each, name="watch") for each in watch)]
        await leaving.wait()
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def signals(leaving: asyncio.Event) -> Iterator[None]:
    """Have SIGTERM or SIGINT set `leaving`, for the length of the context; a second one ends us."""
    loop = asyncio.get_running_loop()

    first_at = float("inf")

    def heed(number: signal.Signals) -> None:
        nonlocal first_at
        if loop.time() - first_at > _ECHO_SECONDS:
            _log.warning("second signal: ending at once", extra={"signal": number.name})
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        first_at = min(first_at, loop.time())
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heed, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
