"""Sets up the environment (a database, the parts, the namespaces) and removes it afterwards."""

import asyncio
import contextlib
import dataclasses
import functools
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench.env import Env, Population
from bench.filling.load import fill
from bench.filling.plan import Plan
from bench.peers import Peer, spawned, started
from bench.profiling import Profiler

_WORKER_COUNT_MAX = 1000
_CONNECTIONS_PER_WORKER = 4
"""The kernel distributes them at random."""
_SETTINGS = ("server.bind=127.0.0.1:0", "log.level=warning")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What to measure on.

    Args:
        dsn: A PostgreSQL; "" for a new one with full durability.
        in_place: Use the database of `dsn` as it is; else create one there, and drop it.
        workers: Processes of the engine under test.
        replicas: Engines on the database, over which the callers are spread.
        clients: Processes that send requests.
        profile: Profile the engine meanwhile.
    """

    dsn: str = ""
    in_place: bool = False
    workers: int = 1
    replicas: int = 1
    clients: int = 1
    profile: bool = False


@contextlib.asynccontextmanager
async def open_env(setting: Setting) -> AsyncIterator[Env]:
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        # Independent parts start at the same time.
        early = [await enter(spawned("processor", each)) for each in ("unary", "stream")]
        clients = [await enter(spawned("client")) for _ in range(setting.clients)]
        database, dsn = await _database(stack, setting)
        for peer in (*early, *clients):
            await peer.until_ready()
        unary, stream = early
        relay = await enter(spawned("relay", unary.address))
        driver = await enter(spawned("driver", dsn))
        engine = await enter(
            started("engine", str(setting.workers), f"database.dsn={dsn}", *_SETTINGS)
        )
        for peer in (relay, driver):
            await peer.until_ready()
        engines = [engine]
        for _ in range(setting.replicas - 1):
            await enter(_engine_beside(engines, dsn))
        yield Env(
            engines=engines,
            replicas=setting.replicas,
            connections=1 if setting.workers == 1 else _CONNECTIONS_PER_WORKER * setting.workers,
            processors={False: unary, True: stream},
            namespaces={
                streams: await _namespace(clients[0], engine, processor)
                for streams, processor in ((False, unary), (True, stream))
            },
            relay=relay,
            clients=clients,
            driver=driver,
            database=database,
            profiler=Profiler(engine.pid, dsn) if setting.profile else None,
            engine_beside=functools.partial(_engine_beside, engines, dsn),
            populated=functools.partial(_populated, engines, dsn, stream),
        )


@contextlib.asynccontextmanager
async def _engine_beside(engines: list[Peer], dsn: str, *more: str) -> AsyncIterator[Peer]:
    async with started("engine", "1", f"database.dsn={dsn}", *_SETTINGS, *more) as engine:
        engines.append(engine)
        try:
            yield engine
        finally:
            engines.remove(engine)


@contextlib.asynccontextmanager
async def _populated(
    engines: list[Peer], dsn: str, processor: Peer, plan: Plan
) -> AsyncIterator[Population]:
    async with _database_at(dsn) as own:
        await asyncio.to_thread(fill, own, plan, processor=processor.address)
        async with _engine_beside(engines, own) as engine:
            beside = functools.partial(_engine_beside, engines, own)
            yield Population(dsn=own, plan=plan, engine=engine, engine_beside=beside)


async def _namespace(client: Peer, engine: Peer, processor: Peer) -> str:
    name = f"bench-{secrets.token_hex(4)}"
    await client.ask(
        what="namespace", target=engine.address, name=name, processor=processor.address,
        workers=_WORKER_COUNT_MAX,
    )  # fmt: skip
    return name


async def _database(stack: contextlib.AsyncExitStack, setting: Setting) -> tuple[Peer | None, str]:
    """Return the database and its connection string; None if another program runs it."""
    if not setting.dsn:
        database = await stack.enter_async_context(_own_database())
        return database, str(database.ready["dsn"])
    if setting.in_place:
        return None, setting.dsn
    return None, await stack.enter_async_context(_database_at(setting.dsn))


@contextlib.asynccontextmanager
async def _own_database() -> AsyncIterator[Peer]:
    # Not on a tmpfs: a commit must reach a disk.
    directory = Path(tempfile.mkdtemp(prefix="progressor-bench-", dir="/var/tmp"))
    try:
        async with started("database", str(directory)) as database:
            yield database
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def _database_at(dsn: str) -> AsyncIterator[str]:
    """Create a database, and drop it afterwards."""
    name = f"progressor_bench_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            await connection.execute(drop.format(sql.Identifier(name)))
