"""How much memory does an engine need with 10,000 calls in flight?"""

import asyncio
import secrets
import time

from bench.cpu import memory_mb
from bench.env import SESSION, STREAM, Env, Variant, turn_of
from bench.measurement import Measurement, Pace, summed_up
from bench.questions.quiet import until_reached

_CALL_COUNT = 10_000
_WORKER_COUNT_MAX = 20_000
_ROOM = ("server.streams_max=20000", "server.session_calls_max=20000")
_VARIANTS = {"in_flight": STREAM, "in_flight_session": SESSION}
NAMES = tuple(_VARIANTS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Call many processes at once; the processor holds all the steps, and then answers them.

    Each turn starts a new engine, so that the peak is that of these calls (and of the starts
    before).
    """
    return [
        await _measure(name, variant, pace.count(_CALL_COUNT), env)
        for name, variant in _VARIANTS.items()
        if pace.wants(name)
    ]


async def _measure(name: str, variant: Variant, count: int, env: Env) -> Measurement:
    processor = env.processor(variant)
    async with env.engine_beside(*_ROOM) as engine:
        namespace = f"bench-held-{secrets.token_hex(4)}"
        await env.clients[0].ask(
            what="namespace", target=engine.address, name=namespace,
            processor=processor.address, workers=_WORKER_COUNT_MAX,
        )  # fmt: skip
        order = {"prefix": env.prefix(), "namespace": namespace, "targets": [engine.address]}
        await env.ask({**order, "what": "start", "count": count}, SESSION)
        idle, _ = memory_mb(engine.pid)
        held = {**order, "what": "call", "plan": "w", "count": count, "callers": count}
        async with env.measured(name) as stretch, asyncio.TaskGroup() as group:
            begun = time.monotonic()
            calls = group.create_task(env.ask(held, variant), name="calls")
            await until_reached(processor, "held", count)
            filled = time.monotonic() - begun
            now, _ = memory_mb(engine.pid)
            await processor.ask(release=True)
            answers = await calls
        _, peak = memory_mb(engine.pid)
    return summed_up(
        name,
        [turn_of(stretch, answers)],
        in_flight=count,
        filled_in_s=round(filled, 2),
        idle_rss_mb=round(idle, 1),
        held_rss_mb=round(now, 1),
        peak_rss_mb=round(peak, 1),
    )
