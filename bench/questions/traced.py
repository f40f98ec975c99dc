"""What does tracing cost a step if nothing is traced, and if every hundredth process is?"""

from bench.env import Env
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.peers import Peer, started
from bench.questions.steps import run_for_a_turn

_PROCESS_COUNT = 200
_EVERY = {"traced_off": 0, "traced_none": 0, "traced_1": 100}
"""Every how many-th process is traced by its caller."""

NAMES = tuple(_EVERY)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Let processes run alternately on an engine without a collector and on one with it.

    `ratio_to_off` is the rate relative to that without a collector.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    async with started("collector") as collector:
        more = f"telemetry.otlp_endpoint=http://{collector.address}", "telemetry.sample_ratio=0"
        async with env.engine_beside(*more) as pushing:
            for number in range(pace.turns):
                first = number % len(NAMES)
                # Rotate the order, so that a machine that slows down does not favour one of them.
                for name in (*NAMES[first:], *NAMES[:first]):
                    engine = env.engines[0] if name == "traced_off" else pushing
                    turns[name].append(await _run(name, engine, env, pace))
        # An engine that exits pushes the remaining spans first.
        assert (await collector.ask())["bytes"], "nothing was traced"
    off = turns["traced_off"]
    return [
        summed_up(name, own, ratio_to_off=round(ratio(own, off), 3)) for name, own in turns.items()
    ]


async def _run(name: str, engine: Peer, env: Env, pace: Pace) -> Turn:
    order = {
        "count": pace.count(_PROCESS_COUNT), "targets": [engine.address],
        "traced_every": _EVERY[name],
    }  # fmt: skip
    return await run_for_a_turn(env, order, name, pace)
