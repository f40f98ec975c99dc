"""How do calls scale with two and three replicas on one database, and what is the limit?"""

import contextlib

from bench.env import SESSION, Env
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.questions.rounds import processes

_PROCESS_COUNT = 1000
_CALLERS_PER_REPLICA = 64
_REPLICA_COUNT = 3
NAMES = tuple(f"replicas_{count}" for count in range(1, _REPLICA_COUNT + 1))


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call with session and stream, with 64 more callers for each replica, spread over all of them.

    `cores` shows the busy components: at PostgreSQL's limit, its share stops growing with the
    replicas.
    """
    count = pace.count(_PROCESS_COUNT, least=3 * _CALLERS_PER_REPLICA)
    prefix = await processes(env, SESSION, count)
    order = {"what": "call", "prefix": prefix, "distinct": count}
    turns: dict[str, list[Turn]] = {}
    async with contextlib.AsyncExitStack() as stack:
        for replicas, name in enumerate(NAMES, start=1):
            if replicas > len(env.engines):
                await stack.enter_async_context(env.engine_beside())
            wanted = {
                **order,
                "targets": [engine.address for engine in env.engines[:replicas]],
                "callers": _CALLERS_PER_REPLICA * replicas,
            }
            await env.ask({**wanted, "seconds": pace.warm_up}, SESSION)
            wanted["seconds"] = pace.seconds
            turns[name] = [await env.turn(name, wanted, SESSION) for _ in range(pace.turns)]
    one = turns[NAMES[0]]
    return [
        summed_up(name, own, ratio_to_one=round(ratio(own, one), 3))
        for name, own in turns.items()
        if pace.wants(name)
    ]
