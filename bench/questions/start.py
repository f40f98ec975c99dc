"""How many processes can 64 callers start in a second, each with one event?"""

from bench.env import SESSION, STREAM, UNARY, Env
from bench.measurement import Measurement, Pace
from bench.questions.rounds import beside_relay

_VARIANTS = {"start": UNARY, "start_stream": STREAM, "start_session": SESSION}
NAMES = ("relay", *_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Start new processes; the relay's own answer is reported here."""
    return await beside_relay(env, pace, {"what": "start"}, _VARIANTS)
