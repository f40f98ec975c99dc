"""What can break: a PostgreSQL, replicas, processors and relays, each to be begun anew."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from progressor.sdk import Client, NamespaceConfig, RetryPolicy
from progressor.storage.postgres.migrations import migrate
from tests.chaos.load import jobs
from tests.chaos.load.processor import NAMESPACE
from tests.chaos.plan import BACKOFF_SECONDS, LEASE_SECONDS, SCAN_SECONDS, STEP_SECONDS
from tests.support.engine.replica import serving
from tests.support.postgres.cluster import Cluster, open_cluster
from tests.support.postgres.relay import Relay

ROOT = Path(__file__).parents[2]
_PORTS = range(20_000, 30_000)  # Below those that the kernel gives away.
_PORTS_APART = 100
"""Between the ports of two seeds, whose runs may begin at the same moment."""
_WATCH_SECONDS = 0.2

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "server.drain_timeout_seconds": "4",
        "scanner.interval_seconds": str(SCAN_SECONDS),
        "scanner.overdue_seconds": str(SCAN_SECONDS),
        "replica.heartbeat_interval_seconds": "0.3",
        "replica.lease_timeout_seconds": str(LEASE_SECONDS),
        "replica.step_grace_seconds": "0.5",
        "gates.starvation_timeout_seconds": "1",
        "database.front_connections_max": "6",
        "database.worker_connections_max": "4",
        "database.scan_connections_max": "2",
        "log.format": "json",
    }
)


class ChildProcess:
    """A process of its own; its output goes to a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._command = tuple(command)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._is_wanted = False

    @property
    def has_left_by_itself(self) -> bool:
        """Whether it has ended without a request."""
        ended = self._process is not None and self._process.returncode is not None
        return self._is_wanted and ended

    async def start(self) -> None:
        """Begin it, anew if need be."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._command,
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                env={**os.environ, "PROGRESSOR_CONFIG": ""},
            )  # fmt: skip
        self._is_wanted = True

    async def kill(self) -> None:
        """End it at once, frozen or not. Safe to repeat."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """Ask it to leave, wait until it has, and return its exit code."""
        return await self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it where it stands."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> int:
        self._is_wanted = False
        self._send(number)
        return 0 if self._process is None else await self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(number)


@dataclasses.dataclass(slots=True, kw_only=True)
class Scene:
    """What a chaos run breaks; ``accidents`` is what broke by itself."""

    cluster: Cluster
    conninfo: str
    directory: Path
    replicas: list[ChildProcess]
    processors: list[ChildProcess]
    addresses: list[str]
    relays: list[Relay]
    journals: list[Path]
    locks: dict[str, asyncio.Lock] = dataclasses.field(default_factory=dict)
    accidents: list[str] = dataclasses.field(default_factory=list)

    def lock(self, name: str) -> asyncio.Lock:
        """Return what lets one fault at a time have the thing of a name."""
        return self.locks.setdefault(name, asyncio.Lock())

    async def revive(self, index: int) -> None:
        """Start a replica, and return once it serves."""
        await self.replicas[index].start()
        await serving(self.addresses[index])

    async def watch(self) -> None:
        """Note who leaves by itself, and start it anew, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for member in (*self.replicas, *self.processors):
                if member.has_left_by_itself:
                    self.accidents.append(f"{member.name} has left by itself: see its log")
                    await member.start()


@contextlib.asynccontextmanager
async def open_scene(directory: Path, *, replica_count: int, seed: int) -> AsyncIterator[Scene]:
    """Set the scene, with two processors and so many replicas, logs and journals in `directory`."""
    with _cluster() as cluster:
        conninfo = cluster.create_database()
        await asyncio.to_thread(migrate, conninfo)
        ports = _free_ports(2 + replica_count, first=_PORTS_APART * seed % len(_PORTS))
        scene = _scene(cluster, conninfo, directory, ports)
        try:
            await _begin(scene, ports)
            yield scene
        finally:
            for relay in scene.relays:
                await relay.stop()
            for member in (*scene.replicas, *scene.processors):
                await member.kill()


def _scene(cluster: Cluster, conninfo: str, directory: Path, ports: Sequence[int]) -> Scene:
    journals = [directory / f"journal-{number}.jsonl" for number in range(2)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    processors = [
        ChildProcess(
            f"processor {number}",
            ("tests.chaos.load.processor", "--bind", address, "--journal", str(journal)),
            directory / f"processor-{number}.log",
        )
        for number, (address, journal) in enumerate(zip(addresses[:2], journals, strict=True))
    ]
    replicas = []
    for number, address in enumerate(addresses[2:]):
        chosen = {
            **SETTINGS,
            "database.dsn": conninfo,
            "server.bind": address,
            "replica.name": f"replica-{number}",
        }
        flags = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
        log = directory / f"replica-{number}.log"
        replicas.append(ChildProcess(f"replica {number}", ("progressor", "serve", *flags), log))
    return Scene(
        cluster=cluster,
        conninfo=conninfo,
        directory=directory,
        replicas=replicas,
        processors=processors,
        addresses=addresses[2:],
        relays=[Relay(None) for _ in replicas],
        journals=journals,
    )


async def _begin(scene: Scene, ports: Sequence[int]) -> None:
    for processor in scene.processors:
        await processor.start()
    async with asyncio.TaskGroup() as group:
        for index in range(len(scene.replicas)):
            group.create_task(scene.revive(index), name=f"start replica {index}")
    for relay, port in zip(scene.relays, ports[2:], strict=True):
        await relay.start(port)
    async with Client(scene.addresses[0], namespace=NAMESPACE) as client:
        for name in (NAMESPACE, jobs.NAMESPACE):
            await client.namespaces.create(
                NamespaceConfig(
                    name=name,
                    processor_targets=tuple(f"127.0.0.1:{port}" for port in ports[:2]),
                    step_timeout=dt.timedelta(seconds=STEP_SECONDS),
                    retry_policy=RetryPolicy(
                        initial_interval=dt.timedelta(milliseconds=50),
                        interval_max=dt.timedelta(seconds=BACKOFF_SECONDS),
                        attempts_max=1_000_000,  # Only a processor breaks a process here.
                    ),
                )
            )


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    with open_cluster(durable=True) as cluster:
        assert cluster.is_embedded, "a chaos run kills PostgreSQL and needs one of its own"
        yield cluster


def _free_ports(count: int, *, first: int) -> list[int]:
    """Return ports of this machine that are free, and that stay the same."""
    found: list[int] = []
    for offset in range(len(_PORTS)):
        port = _PORTS[(first + offset) % len(_PORTS)]
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    message = f"no {count} free ports in {_PORTS}"
    raise OSError(message)
