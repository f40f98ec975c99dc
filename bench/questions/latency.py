"""How long does a lone caller wait for the answer of a call?"""

from bench.measurement import Measurement, Pace
from bench.questions.side_by_side import side_by_side
from bench.stage import Stage

_PROCESS_COUNT = 100


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Call with one caller; p50 and p99 are what counts here."""
    prefix, count = stage.prefix(), pace.count(_PROCESS_COUNT)
    await stage.warm_up({"what": "start", "prefix": prefix, "count": count})
    order = {"what": "call", "prefix": prefix, "distinct": count, "callers": 1}
    return [await side_by_side("latency", stage, pace, order)]
