"""How many independent nodes of a job of 10,000 end in a second, with its join?"""

import statistics

from bench.cpu import memory_mb
from bench.env import SESSION, STREAM, Env
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.parts.percentiles import curve
from bench.questions import steps
from bench.questions.quiet import until_quiet

_NODE_COUNT = 10_000
_STEPPING = 50
_LEADERS = {"fan_out": "submit", "fan_out_own": "start"}
NAMES = tuple(_LEADERS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Run jobs, each between two periods in which processes run steps.

    fan_out is led by the engine, fan_out_own by its own processor. The rate counts from the
    settlement that starts the nodes to that of the join that ends the job, by PostgreSQL's clock. A
    node answers with a result; `ratio_to_steps` compares with the rate of self-driven steps of 50
    processes (`steps`) in the same run, each of which sets a timer and records an event.
    `peak_rss_mb` is that of the engine after each job: constant if a job leaves nothing behind.
    """
    return [
        await _ask(name, what, env, pace) for name, what in _LEADERS.items() if pace.wants(name)
    ]


async def _ask(name: str, what: str, env: Env, pace: Pace) -> Measurement:
    count = pace.count(_NODE_COUNT, least=10)
    turns, beside, memory = [], [], []
    for _ in range(pace.long_turns):
        beside.append(await _steps(env, pace))
        turns.append(await job(name, what, count, env))
        memory.append(round(memory_mb(env.engines[0].pid)[1]))
    return summed_up(
        name,
        turns,
        nodes=count,
        ratio_to_steps=round(ratio(turns, beside), 3),
        steps_per_s=round(statistics.median(turn.ops_per_s for turn in beside)),
        peak_rss_mb=memory,
    )


async def job(name: str, what: str, count: int, env: Env, *, jobs: int = 1) -> Turn:
    """Run jobs at once, of `count` nodes each, to their end."""
    prefix = env.prefix()
    order = {"what": what, "prefix": prefix, "plan": "j", "number": count, "count": jobs}
    async with env.measured(name) as stretch:
        await env.ask(order, STREAM)
        ended = await env.driver.ask(what="job", prefix=prefix)
    assert ended["done"] == count * jobs, "a job that was not done"
    seconds = ended["seconds"]
    return stretch.turn(count=ended["done"], seconds=seconds, times_ms=curve([seconds]))


async def _steps(env: Env, pace: Pace) -> Turn:
    processor = env.processor(SESSION)
    await processor.ask(halted=False)
    await env.ask({"what": "start", "plan": "s", "count": _STEPPING}, SESSION)
    turn = await steps.turn("", SESSION, env, pace)
    await processor.ask(halted=True)
    await until_quiet(processor)
    return turn
