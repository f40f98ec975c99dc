"""The command top: what goes on in an engine, looked at again and again.

    activity ──► Meter (rates) ──► Overview ──► Screen (tables)

It asks one replica, which tells of all. On a terminal it draws over the whole screen, in a pipe it
prints one look after the other.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import io
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any

from rich.console import Console
from rich.live import Live

from progressor import errors
from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import bad_input, duration, option
from progressor.cli.input.options import DEFAULT_ENGINE, Engine
from progressor.cli.input.signals import until_signal
from progressor.cli.output.documents import render_line
from progressor.cli.output.exit_codes import ExitCode, exit_code_for
from progressor.cli.output.output import PIPE_COLUMNS, Output, SafeConsole
from progressor.cli.top.overview import Meter, Overview
from progressor.cli.top.screen import Away, Screen
from progressor.sdk.client.client import Client
from progressor.sdk.values.activity import Activity

INTERVAL = dt.timedelta(seconds=2)
INTERVAL_MIN = dt.timedelta(seconds=0.1)
INTERVAL_MAX = dt.timedelta(hours=1)

LOOKS_MORE_MAX = 5
"""Of --once, where a replica has not beaten since the first."""

PATIENCE = dt.timedelta(seconds=5)
"""For one look of many: whoever watches is to see that nobody answers."""

_KEYBOARD = 0
"""Standard input, by its number: it may be closed."""

_KEYS_MAX = 64
_AWAY = (ExitCode.UNAVAILABLE, ExitCode.DEADLINE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was told last, and whether anybody answers now."""

    overview: Overview
    away: Away | None = None


Show = Callable[[Look], None]
Watch = Callable[[Show], Coroutine[Any, Any, None]]


async def top(
    *,
    interval: Annotated[
        dt.timedelta, duration("Between two looks, as in 0.5s or 1m.", shown="2s")
    ] = INTERVAL,
    once: Annotated[bool, option("Look for one interval, print what was seen, and end.")] = False,
    engine: Engine = DEFAULT_ENGINE,
) -> None:
    """Watch rates, queues, processors and replicas, until Ctrl-C or q.

    Any one replica tells of all. Namespaces where a task has been due for longest come first;
    rates are those since the look before. While the engine is away it says so, and keeps trying.
    In a pipe it prints one look after the other, with --json each as one line.
    """
    if not INTERVAL_MIN <= interval <= INTERVAL_MAX:
        words = f"must be from 0.1s to 1h, got {interval.total_seconds():g}s"
        raise bad_input("--interval", words)
    async with client_of(engine) as client:
        # Where nobody is to begin with, it ends as any other command does.
        first = await client.replicas.activity()
        if once:
            overview = await _look_once(client, first, interval)
            shown = Screen(overview=overview, address=engine.address)
            Output(as_json=engine.json).show(overview, shown)
            return
        timeout = min(engine.patience, PATIENCE)
        watch = functools.partial(_watch, client, first, interval=interval, timeout=timeout)
        if engine.json or not sys.stdout.isatty() or Console().is_dumb_terminal:
            await _print(watch, engine)
        else:
            await until_signal(_draw(watch, engine))


async def _look_once(client: Client, first: Activity, interval: dt.timedelta) -> Overview:
    meter = Meter()
    overview = meter.read(first)
    for _ in range(1 + LOOKS_MORE_MAX):
        await asyncio.sleep(interval.total_seconds())
        overview = meter.read(await client.replicas.activity())
        if meter.is_ready:
            break
    return overview


async def _watch(
    client: Client, first: Activity, show: Show, *, interval: dt.timedelta, timeout: dt.timedelta
) -> None:
    """Look every interval, and show it; ends only by cancellation, or an error that stays."""
    loop = asyncio.get_running_loop()
    meter = Meter()
    overview, answered_at = meter.read(first), loop.time()
    show(Look(overview=overview))
    look_at = loop.time()
    while True:
        # What could not be looked at in time is left out.
        look_at = max(look_at + interval.total_seconds(), loop.time())
        await asyncio.sleep(look_at - loop.time())
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
        show(Look(overview=overview, away=away))


async def _print(watch: Watch, engine: Engine) -> None:
    """Print one look after the other.

    Raises:
        BrokenPipeError: The reader has closed the pipe.
    """
    left: list[BrokenPipeError] = []

    async def work() -> None:
        try:
            await watch(show)
        except BrokenPipeError as error:
            # Not out of here, where it would become a group.
            left.append(error)

    def show(look: Look) -> None:
        sys.stdout.write(_line(look) if engine.json else _page(look, engine.address))
        sys.stdout.flush()

    await until_signal(work())
    if left:
        raise left[0]


def _line(look: Look) -> str:
    document = look.overview if look.away is None else {"away": look.away}
    return render_line(document) + "\n"


def _page(look: Look, address: str) -> str:
    console = SafeConsole(file=io.StringIO(), width=PIPE_COLUMNS, highlight=False)
    console.print(Screen(overview=look.overview, address=address, away=look.away))
    console.print()
    assert isinstance(console.file, io.StringIO), "the file that it was given"
    return console.file.getvalue()


async def _draw(watch: Watch, engine: Engine) -> None:
    """Draw over the screen until q; the terminal is as it was when this ends, however it does."""
    left = asyncio.Event()
    console = SafeConsole(highlight=False)
    with (
        Live(console=console, screen=True, auto_refresh=False) as live,
        _keyboard(left.set),
        _on_resize(live.refresh),
    ):

        def show(look: Look) -> None:
            screen = Screen(
                overview=look.overview, address=engine.address, away=look.away, is_cut=True
            )
            live.update(screen, refresh=True)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(show), name="watch")
            await left.wait()
            watching.cancel()


@contextlib.contextmanager
def _keyboard(leave: Callable[[], None]) -> Iterator[None]:
    """Have q leave, and no key be shown on the screen, where there is a keyboard."""
    if not os.isatty(_KEYBOARD):
        yield
        return
    loop = asyncio.get_running_loop()

    def heed() -> None:
        keys = b""
        with contextlib.suppress(OSError):
            keys = os.read(_KEYBOARD, _KEYS_MAX)
        if not keys:
            # It is gone, and would tell so again and again.
            loop.remove_reader(_KEYBOARD)
        elif b"q" in keys:
            leave()

    before = termios.tcgetattr(_KEYBOARD)
    tty.setcbreak(_KEYBOARD)
    loop.add_reader(_KEYBOARD, heed)
    try:
        yield
    finally:
        loop.remove_reader(_KEYBOARD)
        # What was typed meanwhile was not meant for the shell.
        termios.tcsetattr(_KEYBOARD, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _on_resize(redraw: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, redraw)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
