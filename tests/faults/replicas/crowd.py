"""A crowd of processes at work in a replica that is going to die, with others waiting behind it.

Each has a step in hand there that will not end by itself, a timer that stands aside for it, and in
line a call from the same replica, a notification and a call from the one that stays.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.sdk import EngineUnavailableError
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import Env, answering, timer
from tests.support.faults.env import rows, until
from tests.support.processor.scripted import Answer, Hang

Answered = bytes | type[Exception]

_WAITING = "SELECT count(*) FROM progressor.schedule WHERE namespace = %(namespace)s"


Way = Mapping[str, bool]
"""How tasks reach the processor, and callers the engine: as options of `open_env`."""

SESSIONS: Way = {"streaming": True, "session": True}
WAYS: Mapping[str, Way] = {
    "calls": {"streaming": False, "session": False},
    "processor streams": {"streaming": True, "session": False},
    "streams and client sessions": SESSIONS,
}

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    env: Env
    victim: ReplicaProcess
    names: tuple[str, ...]
    callers_there: tuple[asyncio.Task[Answered], ...]
    callers_here: tuple[asyncio.Task[Answered], ...]

    async def answers_at_work(self) -> list[Answered]:
        return [
            await answer_to(self.env.client.await_task(name, idempotency_key="1"))
            for name in self.names
        ]


@contextlib.asynccontextmanager
async def crowd_at_work(
    env: Env, observer: psycopg.Connection[Any], directory: Path, *, count: int
) -> AsyncIterator[Crowd]:
    """Have a crowd at work in a replica of its own, which is killed when the context is left."""
    names = tuple(f"p{number}" for number in range(count))
    for name in names:
        env.processor.on_process(name, answering(set_timer=timer(3600)), Hang(), Answer())
        await env.client.start(name)
    async with (
        running_process(env.replica.engine.dsn, directory) as victim,
        env.client_at(victim.address) as there,
        asyncio.TaskGroup() as group,
    ):
        for name in names:
            await there.call(name, b"1", idempotency_key="1", accept_only=True)
        await env.processor.received(2 * count, seconds=PATIENCE_SECONDS)
        callers_there = [group.create_task(answer_to(there.call(name, b"2"))) for name in names]
        await until(env.points, lambda: rows(observer, env, _WAITING) == [(2 * count,)])
        for name in names:
            await env.client.notify(name, b"3")
        callers_here = [group.create_task(answer_to(env.client.call(name, b"4"))) for name in names]
        await until(env.points, lambda: rows(observer, env, _WAITING) == [(4 * count,)])
        yield Crowd(
            env=env,
            victim=victim,
            names=names,
            callers_there=tuple(callers_there),
            callers_here=tuple(callers_here),
        )


async def answer_to(request: Awaitable[Any]) -> Answered:
    """Return a caller's result: the response, or the class of the error."""
    try:
        response: bytes = (await request).response
    except (errors.ProgressorError, EngineUnavailableError) as error:
        return type(error)
    return response
