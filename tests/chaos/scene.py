"""What can break: a PostgreSQL, replicas, processors and relays, each to be begun anew."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from progressor.sdk import Client, NamespaceConfig, RetryPolicy
from progressor.storage.postgres.migrations import migrate
from tests.chaos import bulks
from tests.chaos.load import jobs, messages
from tests.chaos.load.actors import steps
from tests.chaos.load.processor import NAMESPACE
from tests.chaos.plan import BACKOFF_SECONDS, LEASE_SECONDS, SCAN_SECONDS, STEP_SECONDS
from tests.support.engine.process import ChildProcess, ReplicaProcess, free_ports
from tests.support.engine.replica import serving
from tests.support.postgres.cluster import Cluster, open_cluster
from tests.support.postgres.pair import Pair, open_pair, writing
from tests.support.postgres.relay import Relay

_PORTS = range(20_000, 30_000)  # Below those that the kernel gives away.
_PORTS_APART = 100
"""Between the ports of two seeds, whose runs may begin at the same moment."""
_TURN_MAX = 8
_REVIVAL_SECONDS = 300.0
"""A replica that starts may find PostgreSQL killed again and again."""
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


STANDBY_SETTINGS: Mapping[str, str] = MappingProxyType({"database.statement_timeout_seconds": "2"})
"""Statements are given up in less time than a standby is away."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Scene:
    """What a chaos run breaks, processes by name; ``accidents`` is what broke by itself."""

    servers: Cluster | Pair
    conninfo: str
    directory: Path
    replicas: dict[str, ReplicaProcess]
    processors: dict[str, ChildProcess]
    relays: list[Relay]
    journals: list[Path]
    locks: dict[str, asyncio.Lock] = dataclasses.field(default_factory=dict)
    accidents: list[str] = dataclasses.field(default_factory=list)

    @property
    def pair(self) -> Pair:
        assert isinstance(self.servers, Pair), "only a run with a standby has faults of it"
        return self.servers

    @property
    def cluster(self) -> Cluster:
        """Return the server that takes writes."""
        return self.servers.primary if isinstance(self.servers, Pair) else self.servers

    @property
    def addresses(self) -> list[str]:
        return [replica.address for replica in self.replicas.values()]

    def lock(self, name: str) -> asyncio.Lock:
        return self.locks.setdefault(name, asyncio.Lock())

    async def revive(self, process: ChildProcess) -> None:
        """Start a process, and return once it serves if it is a replica."""
        await process.start()
        if isinstance(process, ReplicaProcess):
            await serving(process.address, patience=_REVIVAL_SECONDS)

    async def watch(self) -> None:
        """Note who leaves by itself, and start it anew, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for name, process in [*self.replicas.items(), *self.processors.items()]:
                if process.has_left_by_itself:
                    self.accidents.append(f"{name} has left by itself: see its log")
                    await process.start()


@contextlib.asynccontextmanager
async def open_scene(
    directory: Path, *, replica_count: int, seed: int, standby: bool
) -> AsyncIterator[Scene]:
    """Set the scene, with two processors and so many replicas, logs and journals in `directory`."""
    with _pair() if standby else _cluster() as servers:
        conninfo = _create_database(servers)
        await asyncio.to_thread(migrate, conninfo)
        first = _PORTS_APART * seed % len(_PORTS)
        ports = free_ports(2 + replica_count, [*_PORTS[first:], *_PORTS[:first]])
        scene = _scene(servers, conninfo, directory, [f"127.0.0.1:{port}" for port in ports])
        async with contextlib.AsyncExitStack() as stack:
            for process in (*scene.processors.values(), *scene.replicas.values()):
                await stack.enter_async_context(process.running())
            for relay, port in zip(scene.relays, ports[2:], strict=True):
                await relay.start(port)
                stack.push_async_callback(relay.stop)
            for address in scene.addresses:
                await serving(address, patience=_REVIVAL_SECONDS)
            await _create_namespaces(
                scene.addresses[0], [f"127.0.0.1:{each}" for each in ports[:2]]
            )
            yield scene


def _scene(
    servers: Cluster | Pair, conninfo: str, directory: Path, addresses: Sequence[str]
) -> Scene:
    journals = [directory / f"journal-{number}.jsonl" for number in range(2)]
    # One with streams, and one without.
    engines = ((), ("--engine", addresses[2]))
    processors = {
        f"processor {number}": ChildProcess(
            "tests.chaos.load.processor",
            *("--bind", addresses[number], "--journal", str(journal), *engines[number]),
            log=directory / f"processor-{number}.log",
        )
        for number, journal in enumerate(journals)
    }
    replicas = {}
    for number, address in enumerate(addresses[2:]):
        own = {
            "database.dsn": conninfo,
            "server.bind": address,
            "replica.name": f"replica-{number}",
        }
        log = directory / f"replica-{number}.log"
        if isinstance(servers, Pair):
            own |= STANDBY_SETTINGS
        replicas[f"replica {number}"] = ReplicaProcess({**SETTINGS, **own}, log=log)
    return Scene(
        servers=servers,
        conninfo=conninfo,
        directory=directory,
        replicas=replicas,
        processors=processors,
        relays=[Relay(None) for _ in replicas],
        journals=journals,
    )


async def _create_namespaces(address: str, targets: Sequence[str]) -> None:
    async with Client(address, namespace=NAMESPACE) as client:
        for name in (
            NAMESPACE, jobs.NAMESPACE, messages.NAMESPACE, steps.NAMESPACE, bulks.NAMESPACE,
        ):  # fmt: skip
            await client.namespaces.create(
                NamespaceConfig(
                    name=name,
                    processor_targets=tuple(targets),
                    step_timeout=dt.timedelta(seconds=STEP_SECONDS),
                    history_last=0 if name == steps.NAMESPACE else None,
                    # Of the two processors, only one has streams, and so turns.
                    turn_max=_TURN_MAX if name in {NAMESPACE, steps.NAMESPACE} else 1,
                    retry_policy=RetryPolicy(
                        initial_interval=dt.timedelta(milliseconds=50),
                        interval_max=dt.timedelta(seconds=BACKOFF_SECONDS),
                        attempts_max=1_000_000,  # Only a processor breaks a process here.
                    ),
                )
            )
        for receiver in (*messages.LASTING, *messages.REMOVABLE):
            await messages.start(client, receiver)


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    with open_cluster(durable=True) as cluster:
        assert cluster.is_embedded, "a chaos run kills PostgreSQL and needs one of its own"
        yield cluster


@contextlib.contextmanager
def _pair() -> Iterator[Pair]:
    with open_pair(synchronous=False) as pair:
        pair.insist_for_ever()
        yield pair


def _create_database(servers: Cluster | Pair) -> str:
    if isinstance(servers, Pair):
        return writing(servers.both(servers.primary.create_database()))
    return servers.create_database()
