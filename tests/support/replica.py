"""A whole engine: in this process, or in one of its own that can be killed and frozen."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from progressor import app, config
from progressor.sdk import Client, NamespaceConfig
from tests.support.points import PATIENCE_SECONDS, Points

# Quick enough that a test of the safety nets need not wait long.
SETTINGS: Mapping[str, str] = {
    "server.bind": "127.0.0.1:0",
    "server.drain_timeout_seconds": "5",
    "scanner.interval_seconds": "0.2",
    "scanner.overdue_seconds": "0.2",
    "replica.heartbeat_interval_seconds": "0.2",
    "replica.lease_timeout_seconds": "1",
    "replica.step_grace_seconds": "0.5",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """An engine in this process, serving."""

    engine: app.Engine
    points: Points

    @property
    def address(self) -> str:
        return self.engine.addresses[0]

    @contextlib.asynccontextmanager
    async def namespace(self, name: str, target: str, **options: object) -> AsyncIterator[Client]:
        """Create a namespace for a processor, and return a client for it."""
        async with Client(self.address, namespace=name) as client:
            described = NamespaceConfig(name=name, processor_targets=(target,))
            await client.create_namespace(dataclasses.replace(described, **options))
            yield client


@contextlib.asynccontextmanager
async def running_replica(
    conninfo: str, settings: Mapping[str, str] = {}
) -> AsyncIterator[Replica]:
    """Run an engine on a database until the context is left, which drains it."""
    points = Points()
    loaded = config.load(
        environment={}, flags={**SETTINGS, "database.dsn": conninfo, **settings}
    )
    async with app.engine(loaded, observers=points.observers) as engine:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.serving.wait()
        yield Replica(engine=engine, points=points)


class ReplicaProcess:
    """An engine in a process of its own: `progressor serve`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    def kill(self) -> None:
        """Send SIGKILL; the process is reaped by `running_process`."""
        self.process.kill()

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM: it drains."""
        self.process.terminate()


@contextlib.asynccontextmanager
async def running_process(
    conninfo: str, directory: Path, settings: Mapping[str, str] = {}
) -> AsyncIterator[ReplicaProcess]:
    """Run `progressor serve` on a database, on a unix socket in `directory`."""
    address = f"unix:{directory}/engine.sock"
    chosen = {**SETTINGS, "database.dsn": conninfo, "server.bind": address, **settings}
    flags = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "progressor", "serve", *flags,
        env={**os.environ, "PROGRESSOR_CONFIG": ""},
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await serving(address)
        yield ReplicaProcess(process, address)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.kill()
        await process.wait()


async def serving(address: str) -> None:
    """Wait until the engine at an address says SERVING."""
    while True:
        health = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "progressor", "health", "--address", address,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await health.wait() == 0:
            return
