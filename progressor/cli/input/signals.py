"""Runs a command's work in an event loop until it ends or a signal stops it."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

try:
    from uvloop import new_event_loop
except ImportError:  # pragma: no cover  # asyncio's own loop will do
    from asyncio import new_event_loop  # type: ignore[assignment]

# timeout(1) and some supervisors signal the process, and then its group too.
_ECHO_SECONDS = 0.25

_log = logging.getLogger(__name__)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` in a new event loop, uvloop if it is installed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a signal cancels it; a second signal ends this process.

    Raises:
        ExceptionGroup: `work` failed.
    """
    leaving = asyncio.Event()
    with signals(leaving):
        await until_left(leaving, work)


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


async def until_left(
    leaving: asyncio.Event,
    work: Coroutine[Any, Any, None],
    *watch: Coroutine[Any, Any, None],
) -> None:
    """Run `work` until it ends or `leaving` is set, and `watch` meanwhile; then cancel them.

    Raises:
        ExceptionGroup: One of them failed.
    """
    # Not wrapped in coroutines: one that is cancelled before it starts never awaits its inner one.
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work, name="work")
        working.add_done_callback(lambda _: leaving.set())
        tasks = [working, *(group.create_task(each, name="watch") for each in watch)]
        await leaving.wait()
        for task in tasks:
            task.cancel()


@contextlib.contextmanager
def signals(leaving: asyncio.Event) -> Iterator[None]:
    """Set `leaving` on SIGTERM or SIGINT within the context; a second signal ends this process."""
    loop = asyncio.get_running_loop()

    first_at = float("inf")

    def on_signal(number: signal.Signals) -> None:
        nonlocal first_at
        if loop.time() - first_at > _ECHO_SECONDS:
            _log.warning("second signal: ending at once", extra={"signal": number.name})
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        first_at = min(first_at, loop.time())
        leaving.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
