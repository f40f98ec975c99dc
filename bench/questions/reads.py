"""How many traces of 10 tasks, and lists of 100 processes, can 64 callers read in a second?"""

from bench.measurement import Measurement, Pace, summed_up
from bench.questions.rounds import Way, processes, rounds
from bench.stage import STREAM, Stage

_PROCESS_COUNT = 100
_TASK_COUNT = 10
NAMES = ("trace", "list")


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Read with unary calls, which is all there is for these."""
    count = _PROCESS_COUNT
    prefix = await processes(stage, STREAM, count)
    order = {"prefix": prefix, "distinct": count}
    calls = (_TASK_COUNT - 1) * count
    await stage.ask({**order, "what": "call", "count": calls}, STREAM)
    ways = {name: Way({**order, "what": name}, STREAM) for name in NAMES if pace.wants(name)}
    turns = await rounds(stage, pace, ways)
    return [summed_up(name, own) for name, own in turns.items()]
