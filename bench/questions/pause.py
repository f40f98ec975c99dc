"""How soon does a pause hold while processes step by themselves, and how soon is all as before?"""

import asyncio
import statistics
import time

from bench.env import SESSION, Env
from bench.measurement import Measurement, Pace, summed_up
from bench.parts.plans import BINS_PER_SECOND
from bench.questions import steps
from bench.questions.quiet import until_quiet
from progressor.sdk import Client
from progressor.settings.sections import ReplicaSettings

_PROCESS_COUNT = 200
_NAME = "pause"
NAMES = (_NAME,)
_WINDOW = BINS_PER_SECOND // 10
"""Bins of the windows in which a rate is looked for."""


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Let processes run, pause their namespace for two heartbeats and a turn, and resume it.

    The rate is that of the turns before the pauses. ``late`` counts the steps begun later than a
    heartbeat after the acknowledgement, and `last_ms` is the last one's distance from it;
    ``first_second`` is the rate of the first second after the acknowledgement of the resume,
    relative to the rate before, and ``full_ms`` is when 100 ms first reached 0.9 of that.
    """
    processor = env.processor(SESSION)
    await processor.ask(halted=False)
    await env.ask({"what": "start", "plan": "s", "count": _PROCESS_COUNT}, SESSION)
    await asyncio.sleep(pace.warm_up)
    turns, pauses = [], []
    async with Client(env.engines[0].address) as client:
        for _ in range(pace.turns):
            turns.append(await steps.turn(_NAME, SESSION, env, pace))
            pauses.append(await _pause(env, client, pace))
    await processor.ask(halted=True)
    await until_quiet(processor)
    late, last, first_second, full = zip(*pauses, strict=True)
    return [
        summed_up(
            _NAME, turns, processes=_PROCESS_COUNT, late=sum(late), last_ms=max(last),
            first_second=round(statistics.median(first_second), 3),
            full_ms=statistics.median(full),
        )
    ]  # fmt: skip


async def _pause(env: Env, client: Client, pace: Pace) -> tuple[int, float, float, float]:
    processor, namespace = env.processor(SESSION), env.namespaces[SESSION.stream]
    heartbeat = ReplicaSettings().heartbeat_interval.total_seconds()
    await processor.ask(forget=True)
    begun = time.monotonic()
    await asyncio.sleep(pace.seconds)
    await client.namespaces.pause(namespace, reason="bench")
    paused = time.monotonic()
    await asyncio.sleep(2 * heartbeat + pace.seconds)
    await client.namespaces.resume(namespace)
    resumed = time.monotonic()
    await asyncio.sleep(max(pace.seconds, 2.0))
    answer = await processor.ask(bins=True)
    bins = {int(number): count for number, count in answer["bins"].items()}

    def begun_between(start: float, end: float) -> int:
        return sum(bins.get(each, 0) for each in range(_bin(start), _bin(end)))

    before = begun_between(begun, paused) / (paused - begun)
    # Not the bin of the resume itself, which begins steps before it is acknowledged.
    meanwhile = [each for each in bins if _bin(paused) < each < _bin(resumed) - _WINDOW]
    full = (
        start - _bin(resumed)
        for start in range(_bin(resumed), max(bins, default=0))
        if sum(bins.get(start + each, 0) for each in range(_WINDOW))
        >= 0.9 * before * _WINDOW / BINS_PER_SECOND
    )
    return (
        sum(bins[each] for each in meanwhile if each > _bin(paused + heartbeat)),
        (max(meanwhile, default=_bin(paused)) - _bin(paused)) * 1000 / BINS_PER_SECOND,
        begun_between(resumed, resumed + 1) / before if before else 0.0,
        next(full, max(bins, default=0) - _bin(resumed)) * 1000 / BINS_PER_SECOND,
    )


def _bin(instant: float) -> int:
    return int(instant * BINS_PER_SECOND)
