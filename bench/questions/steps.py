"""How many steps a second do processes make by themselves, on timers of zero, one event each?"""

import asyncio

from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.stage import Stage

_PROCESS_COUNTS = {"steps": 50, "steps_200": 200}
_POLL_SECONDS = 0.1


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Let 50 processes run, and then 200; the processor counts each step.

    p50 and p99 are of the time from one step of a process to its next.
    """
    return [await _run(name, count, stage, pace) for name, count in _PROCESS_COUNTS.items()]


async def _run(name: str, count: int, stage: Stage, pace: Pace) -> Measurement:
    await stage.processor.ask(halted=False)
    await stage.warm_up({"what": "start", "plan": "s", "count": count})
    await asyncio.sleep(pace.warm_up)
    turns = [await _turn(name, stage, pace) for _ in range(pace.turns)]
    await stage.processor.ask(halted=True)
    await _stopped(stage)
    return summed_up(name, turns, processes=count)


async def _turn(name: str, stage: Stage, pace: Pace) -> Turn:
    async with stage.measured(name) as stretch:
        before = await stage.processor.ask(forget=True)
        await asyncio.sleep(pace.seconds)
        after = await stage.processor.ask()
    steps = after["steps"] - before["steps"]
    return Turn(
        others=stretch.others,
        ops_per_s=steps / (after["at"] - before["at"]),
        p50_ms=after["p50_ms"],
        p99_ms=after["p99_ms"],
        cpu_ms_per_op=stretch.per_op(steps),
    )


async def _stopped(stage: Stage) -> None:
    """Wait until no step is made any more."""
    seen = -1
    while (now := (await stage.processor.ask())["steps"]) != seen:
        seen = now
        await asyncio.sleep(_POLL_SECONDS)
