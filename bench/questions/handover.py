"""How soon is a call answered that waits behind a step, once that has settled?"""

from bench.measurement import Measurement, Pace, summed_up
from bench.stage import Stage

_CALL_COUNT = 10_000
_PAIRS_AT_ONCE = 8
_HELD_SECONDS = 0.02


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Call in pairs, the second while the processor holds up the first for 20 ms.

    The time is from the first answer to the second, so it includes the whole step of the second.
    """
    prefix, pairs = stage.prefix(), pace.count(_CALL_COUNT // 2)
    await stage.warm_up({"what": "start", "prefix": prefix, "count": 2 * _PAIRS_AT_ONCE})
    order = {
        "what": "handover", "prefix": prefix, "distinct": 2 * _PAIRS_AT_ONCE,
        "callers": _PAIRS_AT_ONCE, "number": _HELD_SECONDS,
    }  # fmt: skip
    await stage.warm_up({**order, "count": 4 * _PAIRS_AT_ONCE})
    before = await stage.scan_found()
    turn = await stage.turn("handover", {**order, "count": pairs})
    # A call that only a scan has found is one whose wake-up was lost: none must be.
    found = await stage.scan_found() - before
    return [summed_up("handover", [turn], calls=2 * pairs, scan_found=found)]
