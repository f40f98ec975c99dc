"""What does a call cost on a process with 1,000 or 100,000 events, compared with a new one?"""

from bench.env import STREAM, Env
from bench.measurement import Measurement, Pace, ratio, summed_up
from bench.questions.rounds import Way, processes, rounds

_PROCESS_COUNT = 4
_EVENTS_PER_STEP = 10_000
_LAST = 10
_AGES = {"new": 1, "1k": 1000, "100k": 100_000}
NAMES = (
    "history_new", "history_1k", "history_100k", "history_1k_last_10", "history_100k_last_10",
)  # fmt: skip


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call four processes of each age by four callers, without history and with the last 10 events.

    `ratio_to_new` is the cost relative to a call on a new process without history.
    """
    ways = {}
    for age, wanted in _AGES.items():
        events = pace.count(wanted)
        prefix = await _aged(env, events)
        order = {
            "what": "call", "prefix": prefix, "distinct": _PROCESS_COUNT,
            "callers": _PROCESS_COUNT,
        }  # fmt: skip
        ways[f"history_{age}"] = Way(order, STREAM)
        ways[f"history_{age}_last_10"] = Way({**order, "history_last": _LAST}, STREAM)
    turns = await rounds(env, pace, {name: ways[name] for name in NAMES})
    new = turns["history_new"]
    return [
        summed_up(name, own, ratio_to_new=round(ratio(new, own), 3)) for name, own in turns.items()
    ]


async def _aged(env: Env, events: int) -> str:
    """Create processes with so many events, and return the prefix of their ids."""
    prefix = await processes(env, STREAM, _PROCESS_COUNT, events=min(events, _EVENTS_PER_STEP))
    steps = events // _EVENTS_PER_STEP - 1
    if steps > 0:
        order = {
            "what": "call", "prefix": prefix, "distinct": _PROCESS_COUNT, "callers": 1,
            "plan": "m", "number": _EVENTS_PER_STEP, "count": steps * _PROCESS_COUNT,
        }  # fmt: skip
        await env.ask(order, STREAM)
    return prefix
