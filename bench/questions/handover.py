"""How soon is a call answered that waits behind a step, once the step has settled?"""

from bench.env import STREAM, Env
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.rounds import processes

_CALL_COUNT = 2000
_PAIRS_AT_ONCE = 8
_HELD_SECONDS = 0.02
NAMES = ("handover",)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Send calls in pairs, the second while the processor holds the first for 20 ms.

    The time is from the first answer to the second, so it includes the whole step of the second.
    """
    count = 2 * _PAIRS_AT_ONCE
    pairs = pace.count(_CALL_COUNT // 2, least=2 * count)
    prefix = await processes(env, STREAM, count)
    order = {
        "what": "handover", "prefix": prefix, "distinct": count, "callers": _PAIRS_AT_ONCE,
        "number": _HELD_SECONDS,
    }  # fmt: skip
    await env.ask({**order, "count": count}, STREAM)
    before = await env.scan_found()
    turn = await env.turn("handover", {**order, "count": pairs}, STREAM)
    # If only a scan finds a call, its wake-up was lost, which must not happen.
    found = await env.scan_found() - before
    return [summed_up("handover", [turn], calls=2 * pairs, scan_found=found)]
