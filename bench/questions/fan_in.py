"""How many calls a second can 64 callers make on a single process?"""

from bench.env import SESSION, STREAM, Env
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.rounds import Way, processes, rounds

_VARIANTS = {"fan_in": STREAM, "fan_in_session": SESSION}
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call one process; each call waits for the previous ones."""
    ways = {}
    for name, variant in _VARIANTS.items():
        if pace.wants(name):
            prefix = await processes(env, variant, 1)
            ways[name] = Way({"what": "call", "prefix": prefix, "distinct": 1}, variant)
    turns = await rounds(env, pace, ways)
    return [summed_up(name, own) for name, own in turns.items()]
