"""How soon does a task start once the previous one has released a gate of one that all need?"""

import itertools
import statistics

from bench.env import SESSION, STREAM, Env
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_reached

_TASK_COUNT = 500
NAMES = ("mutex",)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Start processes that all need one gate of capacity 1.

    The time is from one answer of the processor until its next request: it includes the settlement
    that releases the gate, the claim of the next task, and both ways to the processor.
    released_p50_ms is the part of it after the commit of that settlement, in which the gate is
    released and the next task is admitted; null if PostgreSQL does not keep commit timestamps.
    """
    count = pace.count(_TASK_COUNT, least=10)
    before = await env.scan_found()
    turns, released = [], list[float]()
    for _ in range(pace.long_turns):
        prefix = env.prefix()
        turns.append(await _turn(env, prefix, count))
        released += await _released(env, prefix)
    return [
        summed_up(
            "mutex",
            turns,
            tasks=count,
            scan_found=await env.scan_found() - before,
            released_p50_ms=round(1000 * statistics.median(released), 2) if released else None,
        )
    ]


async def _released(env: Env, prefix: str) -> list[float]:
    """Return how long each step came after the commit that released the gate, in seconds."""
    settled: dict[str, float] | None
    settled = (await env.driver.ask(what="settled", prefix=prefix))["settled"]
    asked: dict[str, float] = (await env.processor(STREAM).ask(asked=True))["asked"]
    if settled is None:
        return []
    order = sorted(asked, key=asked.__getitem__)
    return [asked[following] - settled[first] for first, following in itertools.pairwise(order)]


async def _turn(env: Env, prefix: str, count: int) -> Turn:
    processor = env.processor(STREAM)
    await processor.ask(forget=True)
    order = {"prefix": prefix, "gates": 1, "plan": "g"}
    await env.ask({**order, "what": "gate", "count": 1, "number": 1}, STREAM)
    async with env.measured("mutex") as stretch:
        begun = await processor.ask()
        await env.ask({**order, "what": "gated", "count": count}, SESSION)
        await until_reached(processor, "count", count - 1)
        ended = await processor.ask()
    seconds = ended["at"] - begun["at"]
    return stretch.turn(count=count, seconds=seconds, times_ms=ended["curve"])
