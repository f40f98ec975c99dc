"""How many traces of 10 tasks, and lists of 100 processes, can 64 callers read in a second?"""

from bench.env import STREAM, Env
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.rounds import Way, processes, rounds

_PROCESS_COUNT = 100
_TASK_COUNT = 10
NAMES = ("trace", "list")


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Read with unary calls, the only form of these."""
    count = _PROCESS_COUNT
    prefix = await processes(env, STREAM, count)
    order = {"prefix": prefix, "distinct": count}
    calls = (_TASK_COUNT - 1) * count
    await env.ask({**order, "what": "call", "count": calls}, STREAM)
    ways = {name: Way({**order, "what": name}, STREAM) for name in NAMES if pace.wants(name)}
    turns = await rounds(env, pace, ways)
    return [summed_up(name, own) for name, own in turns.items()]
