"""How late do 10,000 schedules run that are due in one minute, or at one instant?"""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from bench.env import SESSION, Env, turn_of
from bench.measurement import Measurement, Pace, Turn, summed_up
from bench.parts.plans import plan
from bench.questions.quiet import until_quiet, until_reached
from progressor.sdk.codec.wire import duration_to_wire, instant_to_wire
from progressor.v1 import schedule_service_pb2 as messages
from progressor.v1.schedule_service_pb2_grpc import ScheduleServiceStub

_SCHEDULE_COUNT = 10_000
_SPAN_SECONDS = {"schedules_minute": 60.0, "schedules_at_once": 0.0}
_LEAD_SECONDS = 5.0
_CALLERS = 32
_RATE = 150.0
"""Schedules that are made a second, at least."""
NAMES = tuple(_SPAN_SECONDS)


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Create them well ahead, each to start one process; PostgreSQL records when each ran.

    The times are the lateness from the instant to the transaction; ops_per_s is the rate up to the
    processor's request for the last process. CPU is that of a run and the work that it starts: its
    claim, step and settlement.
    """
    count = pace.count(_SCHEDULE_COUNT)
    before = await env.scan_found()
    measured = []
    for name, span in _SPAN_SECONDS.items():
        if pace.wants(name):
            turn = await _turn(env, name, count=count, span=span * pace.scale)
            measured.append(summed_up(name, [turn], schedules=count, max_ms=round(turn.at(1.0), 3)))
    assert await env.scan_found() == before, "a wake-up was lost"
    return measured


async def _turn(env: Env, name: str, *, count: int, span: float) -> Turn:
    processor, prefix = env.processor(SESSION), env.prefix()
    await until_quiet(processor)
    first = time.time() + _LEAD_SECONDS + count / _RATE
    ids = [f"{prefix}-{number}" for number in range(count)]
    await _make(env, ids, first, span / count)
    answered = (await processor.ask())["answers"]
    await asyncio.sleep(max(0.0, first - time.time() - 0.1))
    async with env.measured(name) as stretch:
        await asyncio.sleep(span)
        await until_reached(processor, "answers", answered + count)
        seconds = time.time() - first
    answer: dict[str, Any] = await env.driver.ask(what="runs", prefix=prefix)
    await _delete(env, ids)
    assert answer["done"] == count, f"{answer['done']} of {count} schedules have run once"
    return turn_of(stretch, [{**answer, "seconds": seconds}])


async def _make(env: Env, ids: list[str], first: float, step: float) -> None:
    """Create schedules, each due once within a day, the first at `first`, then one each `step`."""
    waiting = iter(enumerate(ids))
    start = messages.ScheduledStart(args=plan("n"))
    async with grpc.aio.insecure_channel(env.engines[0].address) as channel:
        stub: Any = ScheduleServiceStub(channel)

        async def work() -> None:
            for number, schedule_id in waiting:
                at = dt.datetime.fromtimestamp(first + number * step, dt.UTC)
                times = messages.IntervalTimes(
                    every=duration_to_wire(dt.timedelta(days=1)), anchor=instant_to_wire(at)
                )
                spec = messages.ScheduleSpec(interval=times, start=start)
                await stub.CreateSchedule(
                    messages.CreateScheduleRequest(
                        namespace=env.namespaces[True], schedule_id=schedule_id, spec=spec
                    )
                )

        await _together(work)
    if time.time() > first:
        message = f"{len(ids)} schedules could not be made before the first was due: too slow here"
        raise RuntimeError(message)


async def _delete(env: Env, ids: list[str]) -> None:
    waiting = iter(ids)
    async with grpc.aio.insecure_channel(env.engines[0].address) as channel:
        stub: Any = ScheduleServiceStub(channel)

        async def work() -> None:
            for schedule_id in waiting:
                await stub.DeleteSchedule(
                    messages.DeleteScheduleRequest(
                        namespace=env.namespaces[True], schedule_id=schedule_id
                    )
                )

        await _together(work)


async def _together(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            group.create_task(work(), name=f"caller {number}")
