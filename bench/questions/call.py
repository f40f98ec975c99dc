"""How many calls a second can 64 callers make on 1,000 processes, each with one event?"""

from bench.measurement import Measurement, Pace
from bench.questions.side_by_side import side_by_side
from bench.stage import Stage

_PROCESS_COUNT = 1000


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Call existing processes, each in its turn."""
    prefix, count = stage.prefix(), pace.count(_PROCESS_COUNT)
    await stage.warm_up({"what": "start", "prefix": prefix, "count": count})
    order = {"what": "call", "prefix": prefix, "distinct": count}
    return [await side_by_side("call", stage, pace, order)]
