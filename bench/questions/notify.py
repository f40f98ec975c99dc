"""How many notifies a second can 64 callers leave with 1,000 processes?"""

import time

from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_quiet, until_reached
from bench.questions.rounds import processes
from bench.stage import SESSION, STREAM, Stage, Variant, turn_of

_PROCESS_COUNT = 1000
_VARIANTS = {"notify": STREAM, "notify_session": SESSION}
NAMES = tuple(_VARIANTS)


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Notify until the time is over, then wait for the steps: their CPU is part of the cost.

    ops_per_s is how fast they are accepted, `settled_per_s` how fast all of it is done.
    """
    count = pace.count(_PROCESS_COUNT, least=64)
    return [
        await _measure(name, variant, count, stage, pace)
        for name, variant in _VARIANTS.items()
        if pace.wants(name)
    ]


async def _measure(
    name: str, variant: Variant, count: int, stage: Stage, pace: Pace
) -> Measurement:
    prefix = await processes(stage, variant, count)
    order = {"what": "notify", "prefix": prefix, "distinct": count}
    await stage.ask({**order, "seconds": pace.warm_up}, variant)
    await until_quiet(stage.processor(variant))
    order["seconds"] = pace.seconds
    done = [await _turn(name, variant, order, stage) for _ in range(pace.turns)]
    settled = sorted(rate for _, rate in done)[len(done) // 2]
    return summed_up(name, [turn for turn, _ in done], settled_per_s=round(settled, 1))


async def _turn(
    name: str, variant: Variant, order: dict[str, object], stage: Stage
) -> tuple[Turn, float]:
    processor = stage.processor(variant)
    before = (await processor.ask())["answers"]
    begun = time.monotonic()
    async with stage.measured(name) as stretch:
        answers = await stage.ask(order, variant)
        accepted = sum(answer["done"] for answer in answers)
        await until_reached(processor, "answers", before + accepted)
        seconds = time.monotonic() - begun
    await until_quiet(processor)
    return turn_of(stretch, answers), accepted / seconds
