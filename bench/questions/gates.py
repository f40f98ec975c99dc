"""What does a task with a gate cost, by the number of tasks that wait at a thousand gates?"""

from bench.env import SESSION, STREAM, Env
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.questions.quiet import until_quiet, until_reached

_GATE_COUNT = 1000
_MEASURED = 2000
_WAITING = {"gates_8k": 8_000, "gates_30k": 30_000, "gates_100k": 100_000}
NAMES = tuple(_WAITING)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Let tasks wait at closed gates, and measure the first that pass once all are open.

    ops_per_s is that of the first tasks, while the others wait; ratio_to_fewest compares with the
    fewest waiting tasks: 1 means that waiting tasks cost nothing.
    """
    found: list[Measurement] = []
    before = await env.scan_found()
    for name, waiting in _WAITING.items():
        if pace.wants(name):
            gates = pace.count(_GATE_COUNT, least=10)
            turn = await _turn(
                env, name, gates=gates, waiting=pace.count(waiting), count=pace.count(_MEASURED)
            )
            fewest = found[0].ops_per_s if found else turn.ops_per_s
            ratio = round(turn.ops_per_s / fewest, 3)
            count = pace.count(waiting)
            found.append(summed_up(name, [turn], gates=gates, waiting=count, ratio_to_fewest=ratio))
    assert await env.scan_found() == before, "a wake-up was lost"
    return found


async def _turn(env: Env, name: str, *, gates: int, waiting: int, count: int) -> Turn:
    processor, prefix = env.processor(STREAM), env.prefix()
    order = {"prefix": prefix, "gates": gates, "plan": "g"}
    await env.ask({**order, "what": "gate", "count": gates, "number": 0}, STREAM)
    await env.ask({**order, "what": "gated", "count": waiting}, SESSION)
    await env.ask({**order, "what": "gate", "count": gates, "number": 1}, STREAM)
    await processor.ask(forget=True)
    async with env.measured(name) as stretch:
        begun = await processor.ask()
        await until_reached(processor, "count", count)
        ended = await processor.ask()
    # The rest passes after the measurement, so that the next turn begins with none.
    await until_quiet(processor)
    seconds = ended["at"] - begun["at"]
    return stretch.turn(count=ended["count"], seconds=seconds, times_ms=ended["curve"])
