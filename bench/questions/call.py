"""How many calls a second can 64 callers make on 1,000 processes, each with one event?"""

from bench.env import RELAY, SESSION, STREAM, UNARY, Env
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.rounds import Way, processes, rounds

_VARIANTS = {"call": UNARY, "call_stream": STREAM, "call_session": SESSION}
_PROCESS_COUNT = 1000
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call existing processes in turn."""
    count = pace.count(_PROCESS_COUNT, least=64)
    ways = {"relay": Way({"what": "call", "distinct": count}, RELAY)}
    for name, variant in _VARIANTS.items():
        if pace.wants(name):
            prefix = await processes(env, variant, count)
            ways[name] = Way({"what": "call", "prefix": prefix, "distinct": count}, variant)
    turns = await rounds(env, pace, ways)
    relay = turns.pop("relay")
    return [summed_up(name, own, relay, processes=count) for name, own in turns.items()]
