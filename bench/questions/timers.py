"""How late are 5,000 timers that are due within one second?"""

import asyncio
import statistics
import time

from bench.env import SESSION, Env
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_quiet, until_reached

_TIMER_COUNT = 5000
_SPAN_SECONDS = 1.0
_LEAD_SECONDS = 1.0
_LEAD_FACTOR = 1.3
_PROBE_COUNT = 500
_TRY_COUNT = 3
_POLL_SECONDS = 0.1
NAMES = ("timers",)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Set them by as many starts, well ahead; the processor compares its clock with each instant.

    The times are their lateness; ops_per_s is the rate at which they ran, at most that of one
    second.
    """
    count = pace.count(_TIMER_COUNT)
    rate = (await env.turn("", {"what": "start", "count": _PROBE_COUNT}, SESSION)).ops_per_s
    lead = _LEAD_SECONDS + _LEAD_FACTOR * count / rate
    before = await env.scan_found()
    turns = [await _turn(count, lead, env) for _ in range(pace.long_turns)]
    found = await env.scan_found() - before
    latest = statistics.median(turn.at(1.0) for turn in turns)
    return [summed_up("timers", turns, timers=count, max_ms=round(latest, 3), scan_found=found)]


async def _turn(count: int, lead: float, env: Env) -> Turn:
    processor = env.processor(SESSION)
    first = await _set_timers(count, lead, env)
    await asyncio.sleep(max(0.0, first - time.time() - _POLL_SECONDS))
    async with env.measured("timers") as stretch:
        await until_reached(processor, "count", count, poll=_POLL_SECONDS)
        seconds = time.time() - first
    answer = await processor.ask()
    return stretch.turn(count=count, seconds=max(seconds, _SPAN_SECONDS), times_ms=answer["curve"])


async def _set_timers(count: int, lead: float, env: Env) -> float:
    """Set them all before the first is due, and return when that is, in seconds since 1970."""
    for patience in range(_TRY_COUNT):
        await env.processor(SESSION).ask(forget=True)
        first = time.time() + lead * (1 << patience)
        timers = {"number": first, "step": _SPAN_SECONDS / count, "count": count}
        await env.ask({"what": "start", "plan": "t", **timers}, SESSION)
        if time.time() < first:
            return first
        # Not set in time: wait for those in flight, so that they are not counted later.
        await until_quiet(env.processor(SESSION))
    message = f"{count} timers could not be set before the first of them was due: too slow here"
    raise RuntimeError(message)
