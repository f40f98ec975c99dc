"""Alternating turns of several variants, so that they meet the same conditions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bench.env import RELAY, Env, Variant
from bench.measurement import Measurement, Pace, Turn, summed_up


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """An order, and the parts that it goes through."""

    order: Mapping[str, Any]
    variant: Variant


async def rounds(env: Env, pace: Pace, ways: Mapping[str, Way]) -> dict[str, list[Turn]]:
    """Return the turns of each way by its name: after a warm-up of all, they alternate."""
    for way in ways.values():
        await env.ask({**way.order, "seconds": pace.warm_up}, way.variant)
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    for _ in range(pace.turns):
        for name, way in ways.items():
            order = {**way.order, "seconds": pace.seconds}
            turns[name].append(await env.turn(name, order, way.variant))
    return turns


async def beside_relay(
    env: Env, pace: Pace, order: Mapping[str, Any], variants: Mapping[str, Variant]
) -> list[Measurement]:
    """Return the results of an order: those of the relay, and of the selected variants."""
    ways = {"relay": Way(order, RELAY)}
    ways |= {name: Way(order, each) for name, each in variants.items() if pace.wants(name)}
    turns = await rounds(env, pace, ways)
    relay = turns.pop("relay")
    measured = [summed_up(name, own, relay) for name, own in turns.items()]
    return [summed_up("relay", relay), *measured]


async def processes(env: Env, variant: Variant, count: int, *, events: int = 1) -> str:
    """Start processes with so many events, and return the prefix of their ids."""
    prefix = env.prefix()
    order = {"what": "start", "prefix": prefix, "count": count, "plan": "m", "number": events}
    await env.ask(order, variant)
    return prefix
