"""How many calls a second can 64 callers make on one process, one at a time and in turns?"""

from bench.env import SESSION, Env
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up

_TURNS = {"hot_process": 1, "hot_process_turns": 64}
NAMES = tuple(_TURNS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call one process of each namespace alternately; `ratio_to_single` is that of the rates."""
    orders = {}
    for name, turn_max in _TURNS.items():
        namespace, prefix = f"hot-{env.prefix()}", env.prefix()
        await env.clients[0].ask(
            what="namespace", target=env.engines[0].address, name=namespace, workers=1000,
            processor=env.processor(SESSION).address, turn_max=turn_max,
        )  # fmt: skip
        orders[name] = {"namespace": namespace, "prefix": prefix, "distinct": 1}
        await env.ask({**orders[name], "what": "start", "count": 1, "callers": 1}, SESSION)
        await env.ask({**orders[name], "what": "call", "seconds": pace.warm_up}, SESSION)
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    for _ in range(pace.turns):
        for name, order in orders.items():
            wanted = {**order, "what": "call", "seconds": pace.seconds}
            turns[name].append(await env.turn(name, wanted, SESSION))
    single = turns[NAMES[0]]
    return [
        summed_up(name, own, ratio_to_single=round(ratio(own, single), 3))
        for name, own in turns.items()
        if pace.wants(name)
    ]
