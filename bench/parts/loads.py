"""Two kinds of load: callers that wait for their answers, and a constant rate."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

Ask = Callable[[int, str], Coroutine[Any, Any, float | None]]
"""Sends a request; returns the seconds to count, or None for its duration."""

Ids = Iterator[tuple[int, str]]

_SWING_SECONDS = 0.05

_clock = time.perf_counter


async def closed_loop(ask: Ask, ids: Ids, *, callers: int, seconds: float) -> dict[str, Any]:
    """Return the times of the requests of `callers`, each one after the other, and their number.

    Requests that end before all callers are active, or later than `seconds` after that, do not
    count: otherwise the rate of a short turn would be too low.
    """
    times: list[float] = []
    done = 0
    begun = _clock()
    first = begun + (_SWING_SECONDS if seconds < math.inf else 0.0)
    end = first + seconds

    async def caller() -> None:
        nonlocal done
        for number, process_id in ids:
            sent = _clock()
            if sent > end:
                return
            counted = await ask(number, process_id)
            done += 1
            if first <= (now := _clock()) <= end:
                times.append(now - sent if counted is None else counted)

    async with asyncio.TaskGroup() as group:
        for number in range(callers):
            group.create_task(caller(), name=f"caller {number}")
    return {"times": times, "seconds": min(_clock() - first, seconds), "done": done}


async def open_loop(ask: Ask, ids: Ids, *, rate: float, seconds: float) -> dict[str, Any]:
    """Return the times of requests at a constant rate, whether or not answers arrive.

    The instants are fixed in advance and each time counts from its instant, so that a stall of the
    server, or of this client, counts for all requests that are due meanwhile (no coordinated
    omission). All answers are awaited.

    Source: Gil Tene, "How NOT to Measure Latency".
    """
    times: list[float] = []

    async def one(number: int, process_id: str, due: float) -> None:
        await ask(number, process_id)
        times.append(_clock() - due)

    begun = _clock()
    async with asyncio.TaskGroup() as group:
        for turn, (number, process_id) in zip(range(int(rate * seconds)), ids, strict=False):
            due = begun + turn / rate
            if (early := due - _clock()) > 0:
                await asyncio.sleep(early)
            group.create_task(one(number, process_id, due), name=f"request {number}")
    return {"times": times, "seconds": _clock() - begun, "done": len(times)}
