"""The driver: PostgreSQL without an engine; the argument is the connection string."""

import asyncio
import itertools
import sys
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from bench.parts import orders, plans
from bench.parts.raw_writes import Functions, calls, settlements
from progressor.domain.processes.process import process_key
from progressor.settings.sections import Database
from progressor.storage.access.first_admin import create_first_admin
from progressor.storage.postgres.rows import arrays

_Connection = psycopg.AsyncConnection[tuple[Any, ...]]
_TABLE = "bench_commits"
_SETTLED = """
    SELECT process_id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8
    FROM progressor.tasks
    WHERE process_id LIKE %s AND task_type = 'init' AND status = 'finished'"""

_JOBS = """
    SELECT count(*), count(*) FILTER (WHERE state = 'running'),
        sum(node_count) FILTER (WHERE state = 'done'),
        extract(epoch FROM max(ended_at) - min(created_at))::float8
    FROM progressor.jobs
    WHERE process_id LIKE %s"""
_RUNS = """
    SELECT extract(epoch FROM f.recorded_at - f.due_at)::float8
    FROM progressor.schedule_runs f
    WHERE f.schedule_id LIKE %s AND f.task_id IS NOT NULL"""
_POLL_SECONDS = 0.05


class _Driver:
    """Carries out one order at a time on a few connections."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def obey(self, order: dict[str, Any]) -> orders.Answer:
        match order.pop("what"):
            case "commits":
                return await self._commits(**order)
            case "settled":
                return await self._settled(**order)
            case "runs":
                return await self._runs(**order)
            case "job":
                return await self._job(**order)
            case "admin":
                token = await asyncio.to_thread(create_first_admin, Database(), self._dsn, "bench")
                return {"token": token}
            case _:
                return await self._calls(**order)

    async def version(self) -> str:
        async with await self._connect() as connection:
            major, minor = divmod(connection.info.server_version, 10_000)
            return f"{major}.{minor}"

    async def _commits(self, seconds: float) -> orders.Answer:
        """Time pairs of commits of one row each, like the admission and settlement of a call."""
        async with await self._connect() as connection:
            table = sql.Identifier(_TABLE)
            await connection.execute(
                sql.SQL("CREATE TABLE IF NOT EXISTS {} (payload bytea)").format(table)
            )
            insert = sql.SQL("INSERT INTO {} VALUES (%b)").format(table).as_bytes()
            payload, times = b"p" * plans.SIZE, []
            begun = time.perf_counter()
            while (sent := time.perf_counter()) < begun + seconds:
                await connection.execute(insert, (payload,), prepare=True)
                await connection.execute(insert, (payload,), prepare=True)
                times.append(time.perf_counter() - sent)
            taken = time.perf_counter() - begun
            await connection.execute(sql.SQL("DROP TABLE {}").format(table))
        return {
            "seconds": taken,
            "times_us": [round(1e6 * each) for each in times],
            "done": len(times),
        }

    async def _settled(self, prefix: str) -> orders.Answer:
        """Return when each init task's settlement was committed, in seconds since 1970.

        None if PostgreSQL does not keep commit timestamps (track_commit_timestamp).
        """
        async with await self._connect() as connection:
            cursor = await connection.execute("SHOW track_commit_timestamp")
            if await cursor.fetchone() != ("on",):
                return {"settled": None}
            cursor = await connection.execute(_SETTLED, [f"{prefix}%"])
            return {"settled": dict(await cursor.fetchall())}

    async def _job(self, prefix: str) -> orders.Answer:
        """Wait for the jobs of a prefix to end; return their duration, by PostgreSQL's clock."""
        async with await self._connect() as connection:
            while True:
                cursor = await connection.execute(_JOBS, [f"{prefix}%"])
                row = await cursor.fetchone()
                assert row is not None, "an aggregate has a row"
                job_count, running_count, done, seconds = row
                if job_count and not running_count:
                    return {"done": done, "seconds": seconds}
                await asyncio.sleep(_POLL_SECONDS)

    async def _runs(self, prefix: str) -> orders.Answer:
        """Return how late each run of the schedules of a prefix was, by PostgreSQL's clock."""
        async with await self._connect() as connection:
            cursor = await connection.execute(_RUNS, [f"{prefix}%"])
            times = [row[0] for row in await cursor.fetchall()]
        return {"times_us": [round(1e6 * each) for each in times], "done": len(times)}

    async def _calls(
        self, seconds: float, batch: int, connections: int, namespace: str, ids: Sequence[str]
    ) -> orders.Answer:
        """Admit and settle calls by the engine's own functions, in batches, on several connections.

        A time is that of a call, from the admission to the settlement of its whole batch.
        """
        keys = [process_key(namespace, process_id) for process_id in ids]
        shares = [keys[number::connections] for number in range(connections)]
        times: list[float] = []
        lost = 0
        begun = time.perf_counter()

        async def work(share: Sequence[Any]) -> None:
            nonlocal lost
            async with await self._connect() as connection:
                functions = await Functions.found(connection)
                following = itertools.cycle(share)
                while (sent := time.perf_counter()) < begun + seconds:
                    # In the order of their keys, in which the engine's batches take locks.
                    taken = [next(following) for _ in range(min(batch, len(share)))]
                    admitted = await functions.admit(connection, calls(taken))
                    rows = await functions.settle(connection, settlements(taken, admitted))
                    settled = len(rows)
                    lost += len(taken) - settled
                    times.extend([time.perf_counter() - sent] * settled)

        async with asyncio.TaskGroup() as group:
            for number, share in enumerate(shares):
                group.create_task(work(share), name=f"connection {number}")
        return {
            "seconds": time.perf_counter() - begun,
            "times_us": [round(1e6 * each) for each in times],
            "done": len(times),
            "lost": lost,
        }

    async def _connect(self) -> _Connection:
        connection = await _Connection.connect(self._dsn, autocommit=True)
        arrays.register(connection)
        return connection


async def _main(dsn: str) -> None:
    driver = _Driver(dsn)
    orders.tell({"postgres": await driver.version()})
    await orders.obey(driver.obey)


if __name__ == "__main__":
    orders.run(_main(sys.argv[1]))
