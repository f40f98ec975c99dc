"""Turns of the relay and of the engine, one after the other."""

from collections.abc import Mapping

from bench.measurement import Measurement, Pace, summed_up
from bench.stage import Stage


async def side_by_side(
    name: str, stage: Stage, pace: Pace, order: Mapping[str, object]
) -> Measurement:
    """Return what the engine does with an order, beside the relay in the same run."""
    warm_up, measured = {**order, "seconds": pace.warm_up}, {**order, "seconds": pace.seconds}
    await stage.turn(name, warm_up, at_relay=True)
    await stage.warm_up(warm_up)
    relay, engine = [], []
    for _ in range(pace.turns):
        relay.append(await stage.turn(name, measured, at_relay=True))
        engine.append(await stage.turn(name, measured))
    return summed_up(name, engine, relay)
