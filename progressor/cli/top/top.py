"""The command top: activity ──► Meter (rates) ──► Overview ──► Screen (tables), periodically."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import io
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated

from rich.console import Console
from rich.live import Live

from progressor import errors
from progressor.cli.input.options import EngineOptions, bad_input, client_of, duration, option
from progressor.cli.input.signals import until_left, until_signal
from progressor.cli.output import PIPE_COLUMNS, ExitCode, SafeConsole, exit_code_for, render, show
from progressor.cli.top.screen import Away, Screen
from progressor.sdk.client.client import Client
from progressor.sdk.client.overview import Meter, Overview
from progressor.sdk.client.replicas import Activity

INTERVAL = dt.timedelta(seconds=2)
INTERVAL_MIN = dt.timedelta(seconds=0.1)
INTERVAL_MAX = dt.timedelta(hours=1)

EXTRA_INTERVALS_MAX = 5
"""How many more intervals --once waits for a heartbeat of each replica."""

_FRAME_TIMEOUT_SECONDS = 5.0
"""Of a refresh, so that an unavailable engine shows soon."""

_KEYBOARD = 0
"""The descriptor of standard input, which may be closed."""

_KEYS_MAX = 64
_AWAY = (ExitCode.UNAVAILABLE, ExitCode.DEADLINE)


async def top(
    *,
    interval: Annotated[
        dt.timedelta, duration("The time between two refreshes, as in 0.5s or 1m.", shown="2s")
    ] = INTERVAL,
    once: Annotated[bool, option("Print one overview after one interval, and exit.")] = False,
    engine: EngineOptions = EngineOptions(),
) -> None:
    """Watch rates, queues, processors and replicas, until Ctrl-C or q.

    Any replica reports on all. Namespaces with the oldest due task come first; rates are those
    since the last refresh. While the engine is unavailable, top says so and keeps trying. A pipe
    gets one overview after the other; with --json, each is one line.
    """
    if not INTERVAL_MIN <= interval <= INTERVAL_MAX:
        words = f"must be from 0.1s to 1h, got {interval.total_seconds():g}s"
        raise bad_input("--interval", words)
    async with client_of(engine) as client:
        # If the engine is unavailable at first, top ends like any other command.
        first = await client.replicas.activity()
        if once:
            overview = await _read_once(client, first, interval)
            shown = Screen(overview=overview, address=engine.address)
            show(overview, shown, as_json=engine.json)
            return
        screens = _screens(client, first, engine, interval)
        if engine.json or not sys.stdout.isatty() or Console().is_dumb_terminal:
            await _print(screens, as_json=engine.json)
        else:
            await until_signal(_draw(screens))


async def _read_once(client: Client, first: Activity, interval: dt.timedelta) -> Overview:
    meter = Meter()
    overview = meter.read(first)
    for _ in range(1 + EXTRA_INTERVALS_MAX):
        await asyncio.sleep(interval.total_seconds())
        overview = meter.read(await client.replicas.activity())
        if meter.is_ready:
            break
    return overview


async def _screens(
    client: Client, first: Activity, engine: EngineOptions, interval: dt.timedelta
) -> AsyncIterator[Screen]:
    """Yield an overview each interval; ends only by cancellation or a permanent error."""
    loop = asyncio.get_running_loop()
    timeout = min(engine.timeout, _FRAME_TIMEOUT_SECONDS)
    meter = Meter()
    overview, answered_at = meter.read(first), loop.time()
    yield Screen(overview=overview, address=engine.address)
    due_at = loop.time()
    while True:
        # Missed refreshes are left out.
        due_at = max(due_at + interval.total_seconds(), loop.time())
        await asyncio.sleep(due_at - loop.time())
        away = None
        try:
            overview = meter.read(await client.replicas.activity(timeout=timeout))
            answered_at = loop.time()
        except errors.ProgressorError as error:
            if exit_code_for(error) not in _AWAY:
                raise
            away = Away(
                since=overview.read_at,
                lasting=dt.timedelta(seconds=loop.time() - answered_at),
                reason=error.reason,
                message=str(error),
            )
        yield Screen(overview=overview, address=engine.address, away=away)


async def _print(screens: AsyncIterator[Screen], *, as_json: bool) -> None:
    """Print one overview after the other, until the reader closes the pipe."""
    broken: list[BrokenPipeError] = []

    async def work() -> None:
        try:
            async for screen in screens:
                sys.stdout.write(_line(screen) if as_json else _page(screen))
                sys.stdout.flush()
        except BrokenPipeError as error:
            # Raised later: here it would become an exception group.
            broken.append(error)

    await until_signal(work())
    if broken:
        raise broken[0]


def _line(screen: Screen) -> str:
    document = screen.overview if screen.away is None else {"unavailable": screen.away}
    return render(document, indent=-1) + "\n"


def _page(screen: Screen) -> str:
    file = io.StringIO()
    SafeConsole(file=file, width=PIPE_COLUMNS, highlight=False).print(screen, "")
    return file.getvalue()


async def _draw(screens: AsyncIterator[Screen]) -> None:
    """Draw on the whole screen until q; the terminal is restored in any case."""
    left = asyncio.Event()
    console = SafeConsole(highlight=False)
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        _keyboard(left.set),
        _on_resize(live.refresh),
    ):

        async def work() -> None:
            async for screen in screens:
                live.update(dataclasses.replace(screen, is_cut=True), refresh=True)

        await until_left(left, work())


@contextlib.contextmanager
def _keyboard(leave: Callable[[], None]) -> Iterator[None]:
    """Call `leave` for the key q, and hide typed keys; without a terminal, do nothing."""
    if not os.isatty(_KEYBOARD):
        yield
        return
    loop = asyncio.get_running_loop()

    def read_keys() -> None:
        keys = b""
        with contextlib.suppress(OSError):
            keys = os.read(_KEYBOARD, _KEYS_MAX)
        if not keys:
            # The terminal is gone, and the descriptor would stay readable.
            loop.remove_reader(_KEYBOARD)
        elif b"q" in keys:
            leave()

    before = termios.tcgetattr(_KEYBOARD)
    tty.setcbreak(_KEYBOARD)
    loop.add_reader(_KEYBOARD, read_keys)
    try:
        yield
    finally:
        loop.remove_reader(_KEYBOARD)
        # Discards what was typed, which was not meant for the shell.
        termios.tcsetattr(_KEYBOARD, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _on_resize(redraw: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, redraw)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
