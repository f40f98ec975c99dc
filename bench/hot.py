"""How many updates stay on their page, and what does each write to the WAL and store?

python -m bench.hot [--connections 1 --batch 64] [--before "ALTER TABLE ..."]

Some connections call the engine's functions in batches, on a database of its own. Whole pages that
PostgreSQL writes after a checkpoint are left out (`full_page_writes` is off).
"""

import argparse
import asyncio
import dataclasses
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from rich.console import Console
from rich.table import Table

from bench.parts import raw_writes
from bench.parts.raw_writes import Functions, Item
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.rows import arrays

_ROUNDS = 5
_NAMESPACE, _PAYLOAD = "bench", b"x" * 100
_SETTINGS = {
    "full_page_writes": "off",
    "shared_preload_libraries": "pg_stat_statements",
}
_PREPARE: LiteralString = """
    INSERT INTO progressor.namespaces (name, revision, config, created_at, updated_at)
    VALUES ('bench', 1, '{}', now(), now());
    CREATE EXTENSION pg_stat_statements"""
_RESET: LiteralString = "SELECT pg_stat_reset(), pg_stat_statements_reset()"
_POSITION: LiteralString = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
_UPDATES: LiteralString = """
    SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_newpage_upd,
        pg_table_size(relid), pg_indexes_size(relid)
    FROM pg_stat_user_tables
    WHERE schemaname = 'progressor'
        AND relname IN ('processes', 'tasks', 'running', 'events', 'schedule')
    ORDER BY relname"""
_STATEMENTS: LiteralString = r"""
    SELECT substring(query FROM '\.\"?(\w+)\"?\('), sum(wal_bytes)::bigint
    FROM pg_stat_statements
    WHERE query LIKE 'SELECT * FROM %(%'
    GROUP BY 1 ORDER BY 1"""

_Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Writer:
    functions: Functions
    connection: _Connection

    async def start(self, keys: Sequence[ProcessKey]) -> None:
        started = await self.functions.start(self.connection, raw_writes.starts(keys))
        await self._settle(keys, started)

    async def call(self, keys: Sequence[ProcessKey]) -> None:
        await self._settle(keys, await self._called(keys))

    async def change_metadata(self, keys: Sequence[ProcessKey]) -> None:
        called = await self._called(keys)
        await self._settle(keys, called, lambda task: {"metadata": b'{"step": %d}' % task["token"]})

    async def notify(self, keys: Sequence[ProcessKey]) -> None:
        """Send two notifies to each process: the worker goes on with the second one."""
        admitted = []
        for _ in range(2):
            notifies = [
                {**item, "task_type": "notify", "waits": False} for item in raw_writes.calls(keys)
            ]
            admitted.append(await self._admit(notifies))
        rows = await self._settle(keys, admitted[0])
        await self._settle(keys, [{"token": row["next_token"]} for row in rows])

    async def step(self, keys: Sequence[ProcessKey]) -> None:
        """Let each process go on by itself, by a timer that is due at once."""
        rows = await self._called(keys)
        again = {"timer": "timeout", "timer_after": 0.0}
        for _ in range(_ROUNDS):
            rows = await self._settle(keys, rows, lambda _: again)
            rows = [{"token": row["next_token"]} for row in rows]
        await self._settle(keys, rows)

    async def retry(self, keys: Sequence[ProcessKey]) -> None:
        called = await self._called(keys)
        failed = {"outcome": "retry", "retry_after": 0.0, "attempt_count": 1, "event_payload": None}
        failed |= {"error_code": 14, "error_reason": "PROCESSOR_UNAVAILABLE", "events_until": None}
        failed |= {"error_message": "connection refused", "aux_state": None, "response": None}
        await self._settle(keys, called, lambda _: failed)
        wanted = [
            {**dataclasses.asdict(key), "task_id": task["task_id"], "expires_after": 60.0}
            for key, task in zip(keys, called, strict=True)
        ]
        claimed = await self.functions.claim(self.connection, wanted)
        found = {row["process_id"]: row for row in claimed}
        await self._settle(keys, [found[key.process_id] for key in keys])

    async def _called(self, keys: Sequence[ProcessKey]) -> list[dict[str, Any]]:
        return await self._admit(raw_writes.calls(keys))

    async def _admit(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        given = {"p_replica_id": raw_writes.REPLICA_ID}
        return await self.functions.admission.call(self.connection, items, given=given)

    async def _settle(
        self,
        keys: Sequence[ProcessKey],
        tasks: Sequence[Item],
        extra: Callable[[Item], Item] = lambda _: {},
    ) -> list[dict[str, Any]]:
        usual = {"aux_state": _PAYLOAD, "response": _PAYLOAD, "event_payload": _PAYLOAD}
        items = [
            {**item, **usual, **extra(task)}
            for item, task in zip(raw_writes.settlements(keys, tasks), tasks, strict=True)
        ]
        return await self.functions.settle(self.connection, items)


_LOADS: Mapping[str, tuple[Callable[[_Writer, Sequence[ProcessKey]], Awaitable[None]], int]] = {
    "starts": (_Writer.start, 1),
    "calls": (_Writer.call, _ROUNDS),
    "self-driven steps": (_Writer.step, 1),
    "notifies": (_Writer.notify, _ROUNDS),
    "retries": (_Writer.retry, _ROUNDS),
    "calls that change metadata": (_Writer.change_metadata, _ROUNDS),
}
"""What each does with a batch of processes, and how often with each process."""


@asynccontextmanager
async def _writers(dsn: str, count: int) -> AsyncIterator[list[_Writer]]:
    async with AsyncExitStack() as stack:
        writers = []
        for _ in range(count):
            connect = psycopg.AsyncConnection.connect(dsn, autocommit=True)
            connection = await stack.enter_async_context(await connect)
            arrays.register(connection)
            writers.append(_Writer(await Functions.found(connection), connection))
        yield writers
        for writer in writers:
            await writer.connection.execute("SELECT pg_stat_force_next_flush()")


async def _run(dsn: str, name: str, arguments: argparse.Namespace) -> None:
    load, rounds = _LOADS[name]
    ids = [f"p-{number:07}" for number in range(arguments.processes)]
    keys = [process_key(_NAMESPACE, each) for each in ids]

    async def write(writer: _Writer, own: list[ProcessKey]) -> None:
        for number in range(rounds):
            if name != "starts":
                random.Random(number).shuffle(own)
            for first in range(0, len(own), arguments.batch):
                await load(writer, own[first : first + arguments.batch])

    count = arguments.connections
    async with _writers(dsn, count) as writers, asyncio.TaskGroup() as group:
        for number, writer in enumerate(writers):
            own = keys[number::count]
            group.create_task(write(writer, own), name=f"writer {number}")


def _rows(dsn: str, statement: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def _measure(dsn: str, arguments: argparse.Namespace, updates: Table, wal: Table) -> None:
    process_count = arguments.processes
    for name, (_, rounds) in _LOADS.items():
        _rows(dsn, _RESET)
        before = _rows(dsn, _POSITION)[0][0]
        asyncio.run(_run(dsn, name, arguments))
        items = process_count * rounds
        written = (_rows(dsn, _POSITION)[0][0] - before) / items
        for table, inserted, updated, hot, moved, size, indexes in _rows(dsn, _UPDATES):
            shares = [f"{each / updated:.1%}" if updated else "" for each in (hot, moved)]
            counts = [f"{each / items:.2f}" for each in (inserted, updated)]
            stored = [f"{each / process_count:,.0f}" for each in (size, indexes)]
            updates.add_row(name, table, *counts, *shares, *stored)
        updates.add_section()
        for function, bytes_ in _rows(dsn, _STATEMENTS):
            wal.add_row(name, function, f"{bytes_ / items:,.0f}")
        wal.add_row(name, "all of it, with commits", f"{written:,.0f}", end_section=True)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hot", description=__doc__)
    parser.add_argument("--processes", type=int, default=4000, metavar="N")
    parser.add_argument("--connections", type=int, default=4, metavar="N")
    parser.add_argument("--batch", type=int, default=16, metavar="ITEMS")
    parser.add_argument("--before", default="", metavar="SQL", help="run first, to try a setting")
    arguments = parser.parse_args()
    updates = Table("load", "table", "inserts", "updates", "HOT", "moved", "bytes", "in indexes")
    wal = Table("load", "function", "bytes of WAL")
    with (
        tempfile.TemporaryDirectory(prefix="progressor-hot-", dir="/var/tmp") as directory,
        EmbeddedPostgres(
            data_directory=Path(directory) / "data", settings=_SETTINGS, durable=False
        ) as postgres,
    ):
        migrate(postgres.conninfo)
        with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
            connection.execute(_PREPARE)
            connection.execute(arguments.before.encode())
        _measure(postgres.conninfo, arguments, updates, wal)
    console = Console(width=110)
    console.print(updates, wal)


if __name__ == "__main__":
    _main()
