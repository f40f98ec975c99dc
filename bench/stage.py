"""The stage: every part started, a namespace made, and the stretches that are measured."""

import contextlib
import dataclasses
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench.cpu import busy_seconds, cpu_seconds
from bench.measurement import Turn
from bench.peers import Peer, started
from bench.profiling import Profiler


@dataclasses.dataclass(slots=True)
class Stretch:
    """What a stretch cost; filled in when it is over."""

    others: float = 0.0
    """Cores that were busy with something else."""
    cpu: dict[str, float] = dataclasses.field(default_factory=dict)

    def per_op(self, ops: float) -> dict[str, float]:
        """Return CPU milliseconds per operation and component."""
        return {name: 1000 * used / ops if ops else 0.0 for name, used in self.cpu.items()}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """All parts, running."""

    engine: Peer
    processor: Peer
    relay: Peer
    client: Peer
    namespace: str
    own_postgres: bool
    profiler: Profiler | None

    def prefix(self) -> str:
        """Return the beginning of process ids that nobody has used."""
        return secrets.token_hex(4)

    @contextlib.asynccontextmanager
    async def measured(self, name: str) -> AsyncIterator[Stretch]:
        """Measure what happens inside; with a profiler, look into the engine for `name`."""
        stretch = Stretch()
        async with contextlib.AsyncExitStack() as stack:
            if name and self.profiler is not None:
                await stack.enter_async_context(self.profiler.watching(name))
            before, busy, begun = self._cpu(), busy_seconds(), time.monotonic()
            yield stretch
            after, busy = self._cpu(), busy_seconds() - busy
            seconds = time.monotonic() - begun
        stretch.cpu = {part: after[part] - before[part] for part in after}
        stretch.others = max(0.0, busy - sum(stretch.cpu.values())) / seconds

    async def turn(self, name: str, order: Mapping[str, object], *, at_relay: bool = False) -> Turn:
        """Have the client carry out an order, and return what came of it."""
        target = self.relay if at_relay else self.engine
        async with self.measured("" if at_relay else name) as stretch:
            answer = await self._ask_client(target, order)
        return Turn(
            others=stretch.others,
            ops_per_s=answer["count"] / answer["seconds"],
            p50_ms=answer["p50_ms"],
            p99_ms=answer["p99_ms"],
            cpu_ms_per_op=stretch.per_op(answer["count"]),
        )

    async def warm_up(self, order: Mapping[str, object]) -> None:
        """Have the client carry out an order at the engine that nobody looks at."""
        await self._ask_client(self.engine, order)

    async def scan_found(self) -> int:
        """Return how many due tasks only a scan has found so far: in good health none."""
        counts = (await self.engine.ask())["counts"]
        return int(counts.get("scan_found", 0))

    async def _ask_client(self, target: Peer, order: Mapping[str, object]) -> dict[str, Any]:
        wanted = {"prefix": self.prefix(), **order}
        return await self.client.ask(target=target.address, namespace=self.namespace, **wanted)

    def _cpu(self) -> dict[str, float]:
        parts = (self.engine, self.processor, self.relay, self.client)
        pids = {part.name: part.pid for part in parts}
        return cpu_seconds(pids, all_postgres=not self.own_postgres)


@contextlib.asynccontextmanager
async def open_stage(dsn: str, *, profile: bool) -> AsyncIterator[Stage]:
    """Start everything; on embedded PostgreSQL where no DSN is given, with full durability."""
    async with contextlib.AsyncExitStack() as stack:
        setting = await stack.enter_async_context(_database(dsn))
        processor = await stack.enter_async_context(started("processor"))
        relay = await stack.enter_async_context(started("relay", processor.address))
        client = await stack.enter_async_context(started("client"))
        engine = await stack.enter_async_context(
            started("engine", setting, "server.bind=127.0.0.1:0", "log.level=warning")
        )
        namespace = f"bench-{secrets.token_hex(4)}"
        await client.ask(
            what="namespace", target=engine.address, name=namespace, processor=processor.address
        )
        yield Stage(
            engine=engine,
            processor=processor,
            relay=relay,
            client=client,
            namespace=namespace,
            own_postgres=not dsn,
            profiler=Profiler(engine.pid, engine.ready["dsn"]) if profile else None,
        )


@contextlib.asynccontextmanager
async def _database(dsn: str) -> AsyncIterator[str]:
    """Yield the engine's setting for a fresh database, which is gone afterwards."""
    if not dsn:
        # No tmpfs: a commit must reach a disk.
        directory = Path(tempfile.mkdtemp(prefix="progressor-bench-", dir="/var/tmp"))
        try:
            yield f"database.data_directory={directory}"
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    name = f"progressor_bench_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield f"database.dsn={make_conninfo(dsn, dbname=name)}"
        finally:
            drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            await connection.execute(drop.format(sql.Identifier(name)))
