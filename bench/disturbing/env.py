"""The environment: a PostgreSQL and replicas that can be killed, and a processor."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from bench.disturbing.routes import Route
from bench.peers import Peer, started
from progressor.sdk import Client, NamespaceConfig, ZombiePolicy
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.engine.process import free_ports

REPLICA_COUNT = 2

# Below the ephemeral ports: a connection to an ephemeral port on which nothing listens may connect
# to itself.
_PORTS = range(21_000, 21_900)
_WORKER_COUNT_MAX = 1000


class Server:
    """A PostgreSQL with full durability; its methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._embedded = EmbeddedPostgres(data_directory=directory)
        self.dsn = ""

    def start(self) -> None:
        """Return once it accepts connections; the address never changes."""
        dsn = self._embedded.start()
        assert self.dsn in {"", dsn}, f"{dsn} was {self.dsn}"
        self.dsn = dsn

    def stop(self) -> None:
        """Shut it down fast: sessions end, and no recovery is needed."""
        self._embedded.stop()

    def kill(self) -> None:
        """Kill it with SIGKILL; the next start recovers."""
        lines = (self._directory / "postgres/postmaster.pid").read_text("ascii").splitlines()
        os.kill(int(lines[0]), signal.SIGKILL)
        self._embedded.stop()


class Replica:
    """An engine in a process of its own, always at the same address."""

    def __init__(self, address: str, settings: Mapping[str, str]) -> None:
        self.address = address
        chosen = {"server.bind": address, "log.level": "error", **settings}
        self._settings = [f"{key}={value}" for key, value in chosen.items()]
        self._stack = contextlib.AsyncExitStack()
        self._peer: Peer | None = None

    @property
    def pid(self) -> int:
        assert self._peer is not None, "it was started"
        return self._peer.pid

    async def start(self) -> None:
        self._peer = await self._stack.enter_async_context(started("engine", "1", *self._settings))

    async def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        await self.stop()

    async def stop(self) -> None:
        """Drain it, and wait until it exits. Safe to repeat."""
        self._peer = None
        await self._stack.aclose()

    async def scan_found(self) -> int:
        """Return how many due tasks only a scan has found since its start.

        Raises:
            RuntimeError: It has exited.
        """
        assert self._peer is not None, "it was started"
        return int((await self._peer.ask())["counts"].get("scan_found", 0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    server: Server
    replicas: Sequence[Replica]
    routes: Sequence[Route]
    processor: Peer
    namespace: str

    @property
    def dsn(self) -> str:
        return self.server.dsn


@contextlib.asynccontextmanager
async def open_server() -> AsyncIterator[Server]:
    """Start a PostgreSQL; at the end it is stopped, and its data is deleted."""
    # Not on a tmpfs: a commit must reach a disk.
    directory = Path(tempfile.mkdtemp(prefix="progressor-disturbed-", dir="/var/tmp"))
    server = Server(directory)
    try:
        await asyncio.to_thread(server.start)
        yield server
    finally:
        await asyncio.to_thread(server.stop)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def open_env(
    server: Server,
    processor: Peer,
    *,
    zombie_policy: ZombiePolicy = ZombiePolicy.RETRY,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Env]:
    """Start replicas with the default settings, changed by `settings`."""
    chosen = {"database.dsn": server.dsn, **(settings or {})}
    replicas = [Replica(f"127.0.0.1:{port}", chosen) for port in free_ports(REPLICA_COUNT, _PORTS)]
    config = NamespaceConfig(
        name=f"disturbed-{secrets.token_hex(4)}",
        processor_targets=(processor.address,),
        zombie_policy=zombie_policy,
        history_last=0,
        worker_count_max=_WORKER_COUNT_MAX,
        step_timeout=dt.timedelta(seconds=60),
    )
    async with contextlib.AsyncExitStack() as stack:
        for replica in replicas:
            stack.push_async_callback(replica.stop)
            await replica.start()
        async with Client(replicas[0].address, namespace=config.name) as client:
            await client.namespaces.create(config)
        routes = [Route(replica.address, config.name) for replica in replicas]
        for route in routes:
            await stack.enter_async_context(route)
        yield Env(
            server=server,
            replicas=replicas,
            routes=routes,
            processor=processor,
            namespace=config.name,
        )
