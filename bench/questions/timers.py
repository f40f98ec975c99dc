"""How late do 5,000 timers fire that are due within one second?"""

import asyncio
import time

from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.stage import Stage

_TIMER_COUNT = 5000
_SPAN_SECONDS = 1.0
_LEAD_SECONDS = 2.0
_LEAD_FACTOR = 1.5
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.1


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Set them by as many starts, well ahead; the processor compares its clock with each instant.

    ops_per_s is how fast they were fired, one second's worth at best.
    """
    count = pace.count(_TIMER_COUNT)
    rate = (await stage.turn("", {"what": "start", "seconds": pace.warm_up})).ops_per_s
    lead = _LEAD_SECONDS + _LEAD_FACTOR * count / max(rate, 1.0)
    before = await stage.scan_found()
    turns = [await _turn(count, lead, stage) for _ in range(pace.turns)]
    found = await stage.scan_found() - before
    return [summed_up("timers", turns, timers=count, scan_found=found)]


async def _turn(count: int, lead: float, stage: Stage) -> Turn:
    await stage.processor.ask(forget=True)
    first = time.time() + lead
    step = _SPAN_SECONDS / count
    order = {"what": "start", "plan": "t", "number": first, "step": step, "count": count}
    await stage.warm_up(order)
    spare = first - time.time()
    if spare < 0:
        message = f"the last timer was set {-spare:.1f} s after the first was due: too slow here"
        raise RuntimeError(message)
    await asyncio.sleep(max(0.0, spare - _POLL_SECONDS))
    async with stage.measured("timers") as stretch:
        answer = await _all_fired(count, stage)
        seconds = time.time() - first
    return Turn(
        others=stretch.others,
        ops_per_s=count / max(seconds, _SPAN_SECONDS),
        p50_ms=answer["p50_ms"],
        p99_ms=answer["p99_ms"],
        cpu_ms_per_op=stretch.per_op(count),
    )


async def _all_fired(count: int, stage: Stage) -> dict[str, float]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            answer = await stage.processor.ask()
            if answer["count"] >= count:
                return answer
            await asyncio.sleep(_POLL_SECONDS)
