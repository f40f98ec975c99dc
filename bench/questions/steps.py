"""How many steps a second do processes run by themselves, on timers of zero, one event each?"""

import asyncio
from collections.abc import Mapping
from typing import Any

from bench.env import SESSION, UNARY, Env, Variant
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_quiet

_PROCESSES = {"steps": (50, SESSION), "steps_200": (200, SESSION), "steps_unary": (50, UNARY)}
NAMES = tuple(_PROCESSES)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Let processes run; the processor counts each step.

    The times are from one step of a process to its next.
    """
    return [
        await _run(name, count, variant, env, pace)
        for name, (count, variant) in _PROCESSES.items()
        if pace.wants(name)
    ]


async def _run(name: str, count: int, variant: Variant, env: Env, pace: Pace) -> Measurement:
    processor = env.processor(variant)
    await processor.ask(halted=False)
    await env.ask({"what": "start", "plan": "s", "count": count}, variant)
    await asyncio.sleep(pace.warm_up)
    turns = [await turn(name, variant, env, pace) for _ in range(pace.turns)]
    await processor.ask(halted=True)
    await until_quiet(processor)
    return summed_up(name, turns, processes=count)


async def turn(name: str, variant: Variant, env: Env, pace: Pace) -> Turn:
    """Count the steps in one turn."""
    processor = env.processor(variant)
    async with env.measured(name) as stretch:
        before = await processor.ask(forget=True)
        await asyncio.sleep(pace.seconds)
        after = await processor.ask()
    return stretch.turn(
        count=after["steps"] - before["steps"],
        seconds=after["at"] - before["at"],
        times_ms=after["curve"],
    )


async def run_for_a_turn(env: Env, order: Mapping[str, Any], name: str, pace: Pace) -> Turn:
    """Start processes by an order, count their steps in one turn, and stop them."""
    processor = env.processor(SESSION)
    await processor.ask(halted=False)
    await env.ask({"what": "start", "plan": "s", **order}, SESSION)
    await asyncio.sleep(pace.warm_up)
    measured = await turn(name, SESSION, env, pace)
    await processor.ask(halted=True)
    await until_quiet(processor)
    return measured
