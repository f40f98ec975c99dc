"""How many calls a second can PostgreSQL admit and settle by the engine's functions alone?"""

from bench.env import SESSION, Env, turn_of
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.questions.rounds import processes

_PROCESS_COUNT = 1000
_CONNECTION_COUNT = 4
_BATCHES = {"raw_1": 1, "raw_8": 8, "raw_32": 32}
NAMES = tuple(_BATCHES)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Write from a small driver on 4 connections, in batches of 1, 8 and 32; no engine, no gRPC.

    `engine_ratio` is the engine's rate of calls in the same minute, with session and stream,
    relative to this.
    """
    count = pace.count(_PROCESS_COUNT, least=_CONNECTION_COUNT * max(_BATCHES.values()))
    prefix = await processes(env, SESSION, count)
    order = {"what": "call", "prefix": prefix, "distinct": count}
    await env.ask({**order, "seconds": pace.warm_up}, SESSION)
    order["seconds"] = pace.seconds
    engine: list[Turn] = []
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES if pace.wants(name)}
    lost = 0
    for _ in range(pace.turns):
        engine.append(await env.turn("", order, SESSION))
        for name, own in turns.items():
            async with env.measured("") as stretch:
                answer = await env.driver.ask(
                    what="calls",
                    seconds=pace.seconds,
                    batch=_BATCHES[name],
                    connections=_CONNECTION_COUNT,
                    namespace=env.namespaces[True],
                    ids=[f"{prefix}-{number}" for number in range(count)],
                )
            lost += answer["lost"]
            own.append(turn_of(stretch, [answer]))
    return [
        summed_up(
            name, own, batch=_BATCHES[name], engine_ratio=round(ratio(engine, own), 3), lost=lost
        )
        for name, own in turns.items()
    ]
