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
from progressor.sdk import BYTES, Client, EngineUnavailableError
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import (
    Env,
    Replica,
    ReplicaProcess,
    answering,
    running_process,
    timer,
)
from tests.support.faults.ground import until
from tests.support.processor.scripted import Answer, Hang
from tests.support.storage.doctor.judge import judged_env

Row = tuple[Any, ...]
Told = bytes | type[Exception]

WAITING_EACH = 4
"""What waits on each process: its timer, two calls, a notification."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How tasks reach the processor, and callers the engine."""

    streaming: bool
    session: bool

    def env(self, replica: Replica, **options: Any) -> contextlib.AbstractAsyncContextManager[Env]:
        """Make an environment on which all goes this way."""
        return judged_env(replica, streaming=self.streaming, session=self.session, **options)

    def client_at(self, env: Env, address: str) -> Client:
        """Return a client of the environment at another replica, this way."""
        return Client(
            address,
            namespace=env.namespace,
            codec=BYTES,
            timeout=PATIENCE_SECONDS,
            session=self.session,
        )


WAYS: Mapping[str, Way] = {
    "calls": Way(streaming=False, session=False),
    "processor streams": Way(streaming=True, session=False),
    "streams and client sessions": Way(streaming=True, session=True),
}

every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The processes, the replica that carries them, and what becomes of those who called."""

    env: Env
    victim: ReplicaProcess
    names: tuple[str, ...]
    callers_there: tuple[asyncio.Task[Told], ...]
    callers_here: tuple[asyncio.Task[Told], ...]

    async def told_at_work(self) -> list[Told]:
        """Return the answers here for the steps that were in hand there, in order."""
        return [
            await told(self.env.client.await_task(name, idempotency_key="1")) for name in self.names
        ]


@contextlib.asynccontextmanager
async def crowd_at_work(
    env: Env, way: Way, observer: psycopg.Connection[Any], directory: Path, *, count: int
) -> AsyncIterator[Crowd]:
    """Have a crowd at work in a replica of its own, which is killed when the context is left."""
    names = tuple(f"p{number}" for number in range(count))
    for name in names:
        env.processor.on_process(name, answering(set_timer=timer(3600)), Hang(), Answer())
        await env.client.start(name)
    async with (
        running_process(env.replica.engine.dsn, directory) as victim,
        way.client_at(env, victim.address) as there,
        asyncio.TaskGroup() as group,
    ):
        for name in names:
            await there.call(name, b"1", idempotency_key="1", accept_only=True)
        await env.processor.received(2 * count, seconds=PATIENCE_SECONDS)
        callers_there = [group.create_task(told(there.call(name, b"2"))) for name in names]
        await in_line(env, observer, 2 * count)
        for name in names:
            await env.client.notify(name, b"3")
        callers_here = [group.create_task(told(env.client.call(name, b"4"))) for name in names]
        await in_line(env, observer, WAITING_EACH * count)
        yield Crowd(
            env=env,
            victim=victim,
            names=names,
            callers_there=tuple(callers_there),
            callers_here=tuple(callers_here),
        )


async def in_line(env: Env, observer: psycopg.Connection[Any], count: int) -> None:
    """Wait until so many tasks of an environment wait."""
    await until(
        env.points,
        lambda: (
            rows(
                observer,
                env,
                "SELECT count(*) FROM progressor.schedule WHERE namespace = %(namespace)s",
            )
            == [(count,)]
        ),
    )


def rows(observer: psycopg.Connection[Any], env: Env, query: str) -> list[Row]:
    """Return what a query finds whose parameter is the namespace of an environment."""
    return observer.execute(query.encode(), {"namespace": env.namespace}).fetchall()


async def told(request: Awaitable[Any]) -> Told:
    """Return a caller's result: the response, or the class of the error."""
    try:
        response: bytes = (await request).response
    except (errors.ProgressorError, EngineUnavailableError) as error:
        return type(error)
    return response
