"""Cells: a fault and the bars by which it is judged; and a turn of a cell."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from bench.disturbing import backlog, checks, faults, windows
from bench.disturbing.callers import Callers
from bench.disturbing.cost import Cost, Meter
from bench.disturbing.env import Env, open_env, open_server
from bench.disturbing.pace import Pace
from bench.peers import started

Disturb = Callable[[Env, Callers, Pace], Awaitable[faults.Facts]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A fault that happens while callers send requests.

    ``kept_min`` is the least share of the earlier rate that must be reached after the fault,
    ``during_min`` the least share during it, None for any. ``step_seconds`` is how long a step
    takes.
    """

    text: str
    disturb: Disturb
    kept_min: float = windows.KEPT
    during_min: float | None = None
    step_seconds: float = 0.0
    has_backlog: bool = False


CELLS: Mapping[str, Cell] = MappingProxyType({
    "restart": Cell(text="PostgreSQL restarted", disturb=faults.restart),
    "backends": Cell(text="all backends terminated", disturb=faults.end_backends),
    "connections": Cell(text="every connection taken, 5 s", disturb=faults.take_connections),
    "killed": Cell(text="kill -9 of one of two replicas", disturb=faults.kill_one),
    "kills": Cell(text="4 kills -9, of each replica in turn", disturb=faults.kill_many),
    "xmin": Cell(text="xmin held", disturb=faults.hold_xmin, during_min=0.8),
    "backlog": Cell(text="a backlog falls due", disturb=faults.work_off, has_backlog=True),
    "slow": Cell(
        text="processor 10 x slower", disturb=faults.slow_down, step_seconds=faults.STEP_SECONDS
    ),
    "large": Cell(text="payloads of 1 MiB in 5 % of calls", disturb=faults.send_large),
})  # fmt: skip
"""Those of the comparison: five of chaos, four of pressure."""

OTHERS: Mapping[str, Cell] = MappingProxyType({
    "calm": Cell(text="nothing at all", disturb=faults.nothing),
    "calm_for_long": Cell(
        text="nothing at all, for as long as xmin is held", disturb=faults.nothing_for_long
    ),
    "dump": Cell(text="pg_dump to a slow disk", disturb=faults.dump, during_min=0.8),
    "postgres_killed": Cell(text="kill -9 of PostgreSQL", disturb=faults.kill_postgres),
})  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of a fault: rates per second, and times in seconds from the end of the fault.

    ``during_last`` is the rate of the last window of the fault; ``first`` is the time of the next
    answer, ``slowest`` that of the caller who waited longest, ``back`` that of the first second
    with 0.9 of the earlier rate; None if never. ``rates`` are per second, from the window before
    the fault to the one after it. ``failed`` counts failed attempts. ``cpu_ms_…`` are CPU per
    answer. The client does the same work per answer in any case: if its cost grows, the machine has
    become slower.
    """

    before: float
    during: float
    during_last: float
    after: float
    lasted: float
    first: float | None
    slowest: float | None
    back: float | None
    answered: int
    failed: int
    rates: list[int]
    cpu_ms_before: dict[str, float]
    client_ms_during: float
    cpu_ms_after: dict[str, float]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    findings: list[str] = dataclasses.field(default_factory=list)

    @property
    def held_at_one_speed(self) -> float:
        """The share of the earlier rate during the fault, corrected for the machine's speed."""
        return self.during / max(self.before, 1e-9) * self._slowness(self.client_ms_during)

    @property
    def kept_at_one_speed(self) -> float:
        """The share of the earlier rate after the fault, corrected for the speed of the machine."""
        return self.kept * self._slowness(self.cpu_ms_after["client"])

    def _slowness(self, client_ms: float) -> float:
        return client_ms / max(self.cpu_ms_before["client"], 1e-9)

    @property
    def kept(self) -> float:
        """The share of the earlier rate after the fault."""
        return self.after / max(self.before, 1e-9)


async def turn(cell: Cell, pace: Pace) -> Turn:
    """Run a cell once, in a new environment."""
    async with _opened(cell, pace) as (env, due_at):
        callers = Callers(env.routes, count=pace.callers)
        async with callers.asking():
            await _warm_up(pace, due_at)
            before = await _window(env, pace)
            begun = time.process_time()
            facts = await cell.disturb(env, callers, pace)
            client_seconds = time.process_time() - begun
            after = await _window(env, pace)
        found = await checks.findings(env, callers)
        if cell.has_backlog:
            found += await asyncio.to_thread(backlog.undone, env.dsn, pace)
    measured = _measured(callers, before, after, client_seconds)
    return dataclasses.replace(measured, facts=dict(facts), findings=found)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    begun_at: float
    ended_at: float
    cost: Cost


async def _window(env: Env, pace: Pace) -> _Window:
    meter = Meter(env)
    await asyncio.sleep(pace.seconds)
    ended_at, cost = meter.read()
    return _Window(begun_at=meter.begun_at, ended_at=ended_at, cost=cost)


@contextlib.asynccontextmanager
async def _opened(cell: Cell, pace: Pace) -> AsyncIterator[tuple[Env, float | None]]:
    """Yield an environment, and when its backlog is due; None without a backlog."""
    async with open_server() as server, started("disturbed_processor") as processor:
        await processor.ask(seconds=cell.step_seconds)
        due_at = None
        if cell.has_backlog:
            create = functools.partial(backlog.create, processor=processor.address)
            due_at = await asyncio.to_thread(create, server.dsn, pace)
        async with open_env(server, processor) as env:
            yield env, due_at


async def _warm_up(pace: Pace, due_at: float | None) -> None:
    if due_at is None:
        await asyncio.sleep(pace.warm_up)
        return
    left = due_at - pace.seconds - time.monotonic()
    if left < pace.warm_up:
        message = f"the backlog falls due {pace.warm_up - left:.0f} s too early to be measured"
        raise RuntimeError(message)
    await asyncio.sleep(left)


def _measured(callers: Callers, before: _Window, after: _Window, client_seconds: float) -> Turn:
    each = [caller.answered_at for caller in callers.all]
    instants = sorted(itertools.chain.from_iterable(each))
    began_at, ended_at, until = before.ended_at, after.begun_at, after.ended_at
    rates = [windows.rate(instants, one.begun_at, one.ended_at) for one in (before, after)]
    last_at = max(began_at, ended_at - (until - ended_at))
    during = windows.rate(instants, began_at, ended_at)
    return Turn(
        before=rates[0],
        during=during,
        during_last=windows.rate(instants, last_at, ended_at),
        after=rates[1],
        lasted=ended_at - began_at,
        first=windows.first_after(instants, ended_at),
        slowest=windows.last_of_all(each, ended_at),
        back=windows.back_after(instants, ended_at, until, before=rates[0]),
        answered=len(instants),
        failed=callers.failed,
        rates=windows.per_second(instants, before.begun_at, until),
        cpu_ms_before=_cpu_ms(before, rates[0]),
        client_ms_during=1000 * client_seconds / max(1.0, during * (ended_at - began_at)),
        cpu_ms_after=_cpu_ms(after, rates[1]),
    )


def _cpu_ms(window: _Window, rate: float) -> dict[str, float]:
    count = max(1.0, rate * (window.ended_at - window.begun_at))
    return {name: round(1000 * used / count, 4) for name, used in window.cost.items()}
