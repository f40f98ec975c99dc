"""What does Get of a process with 10 events cost, compared with an empty RPC of the same server?"""

from bench.env import SESSION, STREAM, Env
from bench.measurement import Measurement, Pace, median_p50, ratio, summed_up
from bench.questions.rounds import Way, processes, rounds

_PROCESS_COUNT = 256
_EVENT_COUNT = 10
_VARIANTS = {"get": STREAM, "get_session": SESSION}
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Read with 64 callers; the empty RPC is a unary health check by as many callers."""
    count = pace.count(_PROCESS_COUNT, least=64)
    prefix = await processes(env, STREAM, count, events=_EVENT_COUNT)
    order = {"what": "get", "prefix": prefix, "distinct": count}
    ways = {"empty": Way({"what": "check"}, STREAM)}
    ways |= {name: Way(order, each) for name, each in _VARIANTS.items() if pace.wants(name)}
    turns = await rounds(env, pace, ways)
    empty = turns.pop("empty")
    beside = summed_up("empty", empty)
    return [
        summed_up(
            name,
            own,
            ratio_to_empty=round(ratio(own, empty), 3),
            empty_ops_per_s=round(beside.ops_per_s, 1),
            empty_p50_ms=round(median_p50(empty), 3),
        )
        for name, own in turns.items()
    ]
