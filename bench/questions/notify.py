"""How many notifies a second can 64 callers send to 1,000 processes?"""

import time

from bench.env import SESSION, STREAM, Env, Variant, turn_of
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_quiet, until_reached
from bench.questions.rounds import processes

_PROCESS_COUNT = 1000
_VARIANTS = {"notify": STREAM, "notify_session": SESSION}
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Notify for the given time, then wait for the steps: their CPU is part of the cost.

    ops_per_s is the rate of acceptance, `settled_per_s` the rate at which they are completed.
    """
    count = pace.count(_PROCESS_COUNT, least=64)
    return [
        await _measure(name, variant, count, env, pace)
        for name, variant in _VARIANTS.items()
        if pace.wants(name)
    ]


async def _measure(name: str, variant: Variant, count: int, env: Env, pace: Pace) -> Measurement:
    prefix = await processes(env, variant, count)
    order = {"what": "notify", "prefix": prefix, "distinct": count}
    await env.ask({**order, "seconds": pace.warm_up}, variant)
    await until_quiet(env.processor(variant))
    order["seconds"] = pace.seconds
    done = [await _turn(name, variant, order, env) for _ in range(pace.turns)]
    settled = sorted(rate for _, rate in done)[len(done) // 2]
    return summed_up(name, [turn for turn, _ in done], settled_per_s=round(settled, 1))


async def _turn(
    name: str, variant: Variant, order: dict[str, object], env: Env
) -> tuple[Turn, float]:
    processor = env.processor(variant)
    before = (await processor.ask())["answers"]
    begun = time.monotonic()
    async with env.measured(name) as stretch:
        answers = await env.ask(order, variant)
        accepted = sum(answer["done"] for answer in answers)
        await until_reached(processor, "answers", before + accepted)
        seconds = time.monotonic() - begun
    await until_quiet(processor)
    return turn_of(stretch, answers), accepted / seconds
