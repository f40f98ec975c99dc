"""How long does a lone caller wait, compared with two hops and the two commits of a call?"""

from bench.env import RELAY, SESSION, STREAM, Env, turn_of
from bench.measurement import Measurement, Pace, Turn, median_p50, summed_up
from bench.questions.rounds import processes

_VARIANTS = {"latency": STREAM, "latency_session": SESSION}
_PROCESS_COUNT = 100
_COMMITS_SHARE = 0.5
"""Of a turn's seconds: a commit takes little, and its p50 is all that is asked."""
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call with one caller; `ratio` is its p50 relative to that of the relay plus two commits.

    A commit is of one row, by the driver, on the same PostgreSQL and disk. `latency` reports on
    sessions too.
    """
    count = pace.count(_PROCESS_COUNT)
    prefix = await processes(env, STREAM, count)
    order = {"what": "call", "prefix": prefix, "distinct": count, "callers": 1}
    for variant in (RELAY, *_VARIANTS.values()):
        await env.ask({**order, "seconds": pace.warm_up}, variant)
    order["seconds"] = pace.seconds
    relay: list[Turn] = []
    commits: list[Turn] = []
    turns: dict[str, list[Turn]] = {name: [] for name in _VARIANTS}
    for _ in range(pace.turns):
        relay.append(await env.turn("", order, RELAY))
        commits.append(await _commits(env, _COMMITS_SHARE * pace.seconds))
        for name, variant in _VARIANTS.items():
            turns[name].append(await env.turn(name, order, variant))
    floor = median_p50(relay) + median_p50(commits)
    session = median_p50(turns["latency_session"])
    told = {
        "two_commits_p50_ms": round(median_p50(commits), 3),
        "session_p50_ms": round(session, 3),
        "session_ratio": round(session / floor, 3),
    }
    return [
        summed_up(name, own, relay, ratio=round(median_p50(own) / floor, 3), **told)
        for name, own in turns.items()
    ]


async def _commits(env: Env, seconds: float) -> Turn:
    async with env.measured("") as stretch:
        answer = await env.driver.ask(what="commits", seconds=seconds)
    return turn_of(stretch, [answer])
