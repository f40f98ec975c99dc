"""How many times a second can two unary hops be made here, with no engine and no database?"""

from bench.measurement import Measurement, Pace, summed_up
from bench.stage import Stage


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Start through the relay, 64 callers."""
    order = {"what": "start", "seconds": pace.seconds}
    await stage.turn("relay", {**order, "seconds": pace.warm_up}, at_relay=True)
    turns = [await stage.turn("relay", order, at_relay=True) for _ in range(pace.turns)]
    return [summed_up("relay", turns)]
