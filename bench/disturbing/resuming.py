"""PostgreSQL stops and starts under load: measures when each working process is answered again."""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from bench.disturbing import checks, faults, windows
from bench.disturbing.callers import Callers
from bench.disturbing.env import Env, open_env, open_server
from bench.disturbing.pace import Pace
from bench.peers import started

RESUMED_SECONDS_MAX = 5.0

_WATCHED_SECONDS = 15.0
"""At most, from when PostgreSQL is back."""
_POLL_SECONDS = 0.05

WAYS: Mapping[str, Callable[[Env, Callers, Pace], Awaitable[faults.Facts]]] = MappingProxyType(
    {"restart": faults.restart, "kill": faults.kill_postgres}
)
"""In which it goes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Seconds since PostgreSQL accepts connections; ``first`` until any caller has an answer.

    ``each`` has the first answer of every caller, each with a working process; None if it took
    longer than the measurement. ``away`` is how long PostgreSQL was down.
    """

    away: float
    first: float | None
    each: list[float | None]
    findings: list[str]


async def turn(way: str, pace: Pace) -> Resumed:
    """Stop PostgreSQL once, and measure until all callers have an answer."""
    async with (
        open_server() as server,
        started("disturbed_processor") as processor,
        open_env(server, processor) as env,
    ):
        callers = Callers(env.routes, count=pace.callers)
        async with callers.asking():
            await asyncio.sleep(pace.warm_up)
            gone_at = time.monotonic()
            await WAYS[way](env, callers, pace)
            back_at = time.monotonic()
            await _watch(callers, back_at)
        found = await checks.findings(env, callers)
    each = [windows.first_after(caller.answered_at, back_at) for caller in callers.all]
    answered = [seconds for seconds in each if seconds is not None]
    return Resumed(
        away=back_at - gone_at,
        first=min(answered, default=None),
        each=each,
        findings=found,
    )


async def _watch(callers: Callers, back_at: float) -> None:
    """Return once every caller has an answer, or after a timeout."""
    while time.monotonic() < back_at + _WATCHED_SECONDS:
        if all(each.answered_at and each.answered_at[-1] > back_at for each in callers.all):
            return
        await asyncio.sleep(_POLL_SECONDS)
