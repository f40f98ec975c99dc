"""An engine whose namespaces live in several databases, each behind a proxy that can fail."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from grpc_health.v1 import health_pb2

from progressor.domain.processes.namespace import Namespace
from progressor.engine import engine as app
from progressor.sdk import BYTES, Client, NamespaceConfig
from progressor.settings import config
from progressor.settings.cells import CellTable
from tests.support.engine.points import PATIENCE_SECONDS, Points
from tests.support.engine.replica import SETTINGS, Replica, health_becomes
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.proxy import Proxy, running_proxy
from tests.support.processor.scripted import ScriptedProcessor

CELLS = ("main", "b")
SERVING = health_pb2.HealthCheckResponse.SERVING
AWAY = health_pb2.HealthCheckResponse.NOT_SERVING
HEALTH = {name: f"cell/{name}" for name in CELLS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """A database for each cell, by its name, and the ways to them."""

    databases: Mapping[str, str]
    proxies: Mapping[str, Proxy]

    def config(self, **changes: Any) -> config.Config:
        loaded = config.load(environment={}, flags=SETTINGS)
        cells = tuple(
            CellTable(name=name, dsn=proxy.conninfo) for name, proxy in self.proxies.items()
        )
        return dataclasses.replace(loaded, **{"cells": cells, **changes})


@contextlib.contextmanager
def open_cells(cluster: Cluster, template: str) -> Iterator[Cells]:
    databases = {name: cluster.create_database(template) for name in CELLS}
    with contextlib.ExitStack() as stack:
        proxies = {
            name: stack.enter_context(running_proxy(conninfo))
            for name, conninfo in databases.items()
        }
        yield Cells(databases=databases, proxies=proxies)
    for conninfo in databases.values():
        cluster.drop_database(conninfo)


@contextlib.asynccontextmanager
async def running_cells(
    cells: Cells, *, waits_for: tuple[str, ...] = CELLS, namespaces: tuple[Namespace, ...] = ()
) -> AsyncIterator[Replica]:
    """Run an engine until the context is left; it is entered once these cells are healthy."""
    points = Points()
    loaded = cells.config(namespaces=namespaces)
    async with app.engine(loaded, observers=points.observers) as engine:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.serving.wait()
        replica = Replica(engine=engine, points=points)
        for name in waits_for:
            await health_becomes(replica.address, SERVING, service=HEALTH[name])
        yield replica


@dataclasses.dataclass(frozen=True, kw_only=True)
class Living:
    """A namespace in a cell, its processor, and a client of it."""

    processor: ScriptedProcessor
    client: Client


@contextlib.asynccontextmanager
async def living(
    replica: Replica, name: str, cell: str = "", *, session: bool = True
) -> AsyncIterator[Living]:
    async with (
        ScriptedProcessor() as processor,
        Client(
            replica.address,
            namespace=name,
            codec=BYTES,
            timeout=PATIENCE_SECONDS,
            session=session,
            repeats=False,
        ) as client,
    ):
        await client.namespaces.create(
            NamespaceConfig(name=name, processor_targets=(processor.target,), cell=cell)
        )
        yield Living(processor=processor, client=client)
