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
from tests.support.faults_ground import until
from tests.support.faults_judge import judged_stage
from tests.support.points import PATIENCE_SECONDS
from tests.support.processor import Answer, Hang
from tests.support.replica import (
    Replica,
    ReplicaProcess,
    Stage,
    answering,
    running_process,
    timer,
)

Row = tuple[Any, ...]
Told = bytes | type[Exception]

WAITING_EACH = 4
"""What waits on each process: its timer, two calls, a notification."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How tasks reach the processor, and callers the engine."""

    streaming: bool
    session: bool

    def stage(
        self, replica: Replica, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[Stage]:
        """Make a stage on which all goes this way."""
        return judged_stage(replica, streaming=self.streaming, session=self.session, **options)

    def client_at(self, stage: Stage, address: str) -> Client:
        """Return a client of the stage at another replica, this way."""
        return Client(
            address,
            namespace=stage.namespace,
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

    stage: Stage
    victim: ReplicaProcess
    names: tuple[str, ...]
    callers_there: tuple[asyncio.Task[Told], ...]
    callers_here: tuple[asyncio.Task[Told], ...]

    async def told_at_work(self) -> list[Told]:
        """Return the answers here for the steps that were in hand there, in order."""
        return [
            await told(self.stage.client.await_task(name, idempotency_key="1"))
            for name in self.names
        ]


@contextlib.asynccontextmanager
async def crowd_at_work(
    stage: Stage, way: Way, eye: psycopg.Connection[Any], directory: Path, *, count: int
) -> AsyncIterator[Crowd]:
    """Have a crowd at work in a replica of its own, which is killed when the context is left."""
    names = tuple(f"p{number}" for number in range(count))
    for name in names:
        stage.processor.on_process(name, answering(set_timer=timer(3600)), Hang(), Answer())
        await stage.client.start(name)
    async with (
        running_process(stage.replica.engine.dsn, directory) as victim,
        way.client_at(stage, victim.address) as there,
        asyncio.TaskGroup() as group,
    ):
        for name in names:
            await there.call(name, b"1", idempotency_key="1", accept_only=True)
        await stage.processor.received(2 * count, seconds=PATIENCE_SECONDS)
        callers_there = [group.create_task(told(there.call(name, b"2"))) for name in names]
        await in_line(stage, eye, 2 * count)
        for name in names:
            await stage.client.notify(name, b"3")
        callers_here = [group.create_task(told(stage.client.call(name, b"4"))) for name in names]
        await in_line(stage, eye, WAITING_EACH * count)
        yield Crowd(
            stage=stage,
            victim=victim,
            names=names,
            callers_there=tuple(callers_there),
            callers_here=tuple(callers_here),
        )


async def in_line(stage: Stage, eye: psycopg.Connection[Any], count: int) -> None:
    """Wait until so many tasks of a stage wait."""
    await until(
        stage.points,
        lambda: (
            rows(
                eye,
                stage,
                "SELECT count(*) FROM progressor.schedule WHERE namespace = %(namespace)s",
            )
            == [(count,)]
        ),
    )


def rows(eye: psycopg.Connection[Any], stage: Stage, query: str) -> list[Row]:
    """Return what a query finds whose parameter is the namespace of a stage."""
    return eye.execute(query.encode(), {"namespace": stage.namespace}).fetchall()


async def told(request: Awaitable[Any]) -> Told:
    """Return a caller's result: the response, or the class of the error."""
    try:
        response: bytes = (await request).response
    except (errors.ProgressorError, EngineUnavailableError) as error:
        return type(error)
    return response
