"""Processes that end with their first step, in batches, by the functions that the engine calls.

So the database gets the load of several engines from a fraction of a core.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg

from bench.parts import raw_writes
from bench.parts.raw_writes import Functions
from progressor.domain.processes.process import process_key
from progressor.storage.postgres.rows import arrays

BATCH = 50

APPLICATION = "bench writer"

_CONNECTIONS = 8

# Or a batch that waits for a core counts as that of a replica that has died.
_LIVE_FOR_A_DAY: LiteralString = """
    INSERT INTO progressor.replicas
        (replica_id, name, version, functions, started_at, heartbeat_at)
    SELECT %s, 'bench', r.version, r.functions, now(), now() + interval '1 day'
    FROM progressor.replicas r
    LIMIT 1"""


class ShortLives:
    """A life is a batch here; otherwise as `Lives`."""

    size = BATCH
    steps = 1

    def __init__(
        self, connections: list[psycopg.AsyncConnection], functions: Functions, namespace: str
    ) -> None:
        self._free: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
        for each in connections:
            self._free.put_nowait(each)
        self._functions = functions
        self._namespace = namespace
        self._begun = 0.0
        self._rate = 0.0
        self.took: list[float] = []
        self.failed = 0

    def come_at(self, rate: float) -> None:
        """Start a new series: batch n is due n / `rate` seconds from now."""
        self._begun, self._rate = time.perf_counter(), rate
        self.took.clear()

    async def live(self, number: int, process_id: str) -> None:
        due = self._begun + number / self._rate if self._rate else time.perf_counter()
        keys = [process_key(self._namespace, f"{process_id}-{each}") for each in range(BATCH)]
        connection = await self._free.get()
        try:
            started = await self._functions.start(connection, raw_writes.starts(keys))
            ends = raw_writes.settlements(keys, started)
            ended = await self._functions.settle(
                connection, [{**each, "outcome": "complete"} for each in ends]
            )
        finally:
            self._free.put_nowait(connection)
        self.failed += BATCH - len(ended)
        self.took += [time.perf_counter() - due] * len(ended)


@contextlib.asynccontextmanager
async def short_lives(dsn: str, namespace: str) -> AsyncIterator[ShortLives]:
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(_CONNECTIONS):
            connect = psycopg.AsyncConnection.connect(
                dsn, autocommit=True, application_name=APPLICATION
            )
            connection = await stack.enter_async_context(await connect)
            arrays.register(connection)
            connections.append(connection)
        await connections[0].execute(_LIVE_FOR_A_DAY, (raw_writes.REPLICA_ID,))
        yield ShortLives(connections, await Functions.found(connections[0]), namespace)
