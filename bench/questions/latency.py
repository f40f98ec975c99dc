"""How long does a lone caller wait, beside two hops and the two commits that a call needs?"""

from bench.measurement import Measurement, Pace, Turn, median_p50, summed_up
from bench.questions.rounds import processes
from bench.stage import RELAY, SESSION, STREAM, Stage, turn_of

_VARIANTS = {"latency": STREAM, "latency_session": SESSION}
_PROCESS_COUNT = 100
_COMMITS_SHARE = 0.5
"""Of a turn's seconds: a commit takes little, and its p50 is all that is asked."""
NAMES = tuple(_VARIANTS)


async def ask(stage: Stage, pace: Pace) -> list[Measurement]:
    """Call with one caller; `ratio` is its p50 over the relay's and that of two commits.

    A commit is of one row, by the driver, on the same PostgreSQL and disk. `latency` tells of the
    session too.
    """
    count = pace.count(_PROCESS_COUNT)
    prefix = await processes(stage, STREAM, count)
    order = {"what": "call", "prefix": prefix, "distinct": count, "callers": 1}
    for variant in (RELAY, *_VARIANTS.values()):
        await stage.ask({**order, "seconds": pace.warm_up}, variant)
    order["seconds"] = pace.seconds
    relay: list[Turn] = []
    commits: list[Turn] = []
    turns: dict[str, list[Turn]] = {name: [] for name in _VARIANTS}
    for _ in range(pace.turns):
        relay.append(await stage.turn("", order, RELAY))
        commits.append(await _commits(stage, _COMMITS_SHARE * pace.seconds))
        for name, variant in _VARIANTS.items():
            turns[name].append(await stage.turn(name, order, variant))
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


async def _commits(stage: Stage, seconds: float) -> Turn:
    async with stage.measured("") as stretch:
        answer = await stage.driver.ask(what="commits", seconds=seconds)
    return turn_of(stretch, [answer])
