"""The composition root: builds an engine as one tree of tasks.

It listens at once, NOT_SERVING, and runs its cells beside each other (``cell``, each put together
by ``wiring``). It serves as long as one of them does, so that a database that is away takes nothing
but its own namespaces with it. Drain: NOT_SERVING, then all cells at once.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import os
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from progressor import errors
from progressor.api.guard.audit import Recorder
from progressor.api.server.places import Places
from progressor.api.server.server import ApiServer, Listening
from progressor.clock import Clock, SystemClock
from progressor.engine.access import AccessControl
from progressor.engine.cell import Cell, Shared
from progressor.engine.certificates import (
    metrics_context,
    processor_credentials,
    server_certificate,
)
from progressor.engine.placement import Placement
from progressor.runtime.core.context import Observers
from progressor.settings.config import Config
from progressor.settings.sections import Database
from progressor.storage.access.access import Access
from progressor.storage.access.audit import AuditNotes
from progressor.storage.embedded.databases import ensure_database
from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.embedded.settings import room_for
from progressor.telemetry.instruments import Labels
from progressor.telemetry.logs.level import LogLevelSwitch
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.setup import ReplicaTelemetry
from progressor.wire.tls import Reloaded, TlsMaterial

_log = logging.getLogger(__name__)

_KEEP_SECONDS = 1.0
_START_SECONDS = 30.0
"""How long a replica that starts waits for all of its cells before it serves some of them."""


class Engine:
    """A running engine; `engine` makes one."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        observers: Observers,
        port_shared: bool,
        paused: bool = False,
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self.metrics = Metrics()
        self.metrics_url = ""
        """Where Prometheus reads them; empty: nowhere."""
        self.serving = asyncio.Event()
        self.observers = observers
        self._config = config
        self._stop, self._drained = asyncio.Event(), asyncio.Event()
        self._health_changed, self._places_stale = asyncio.Event(), asyncio.Event()
        # Two replicas of one name on one machine would push each other's counters back.
        instance = f"{config.replica.name}:{os.getpid()}"
        self._certificate = server_certificate(config.server, self.metrics)
        self._credentials = processor_credentials(config.processor_credentials, self.metrics)
        self._telemetry = ReplicaTelemetry(
            config.telemetry,
            self.metrics,
            instance=instance,
            chance=random.random,
            clock=clock,
            tls=metrics_context(self._certificate, config.server, config.telemetry),
        )
        notes = AuditNotes(clock)
        shared = Shared(
            clock=clock, observers=observers, tracing=self._telemetry.tracing,
            credentials=self._credentials, stop=self._stop, interrupt=self._interrupt,
            drained=self._drained.wait, changed=self._health_changed.set,
        )  # fmt: skip
        self._placement = Placement(config) if config.cells else None
        self.cells = tuple(
            Cell(
                own if self._placement is None else dataclasses.replace(own, namespaces=()),
                name=name,
                shared=shared,
                metrics=self.metrics if self._placement is None else self.metrics.of_cell(name),
                # A denied request belongs to no cell: it is noted in the home cell.
                audit_notes=notes if number == 0 else AuditNotes(clock),
                identify=None if self._placement is None else self._placement.identify,
                paused=paused,
            )
            for number, (name, own) in enumerate(config.by_cell.items())
        )
        self._home = self.cells[0]
        if self._placement is not None:
            self.metrics.cell_serving.read_from(self._cells_served)
        self._places = Places({cell.name: cell.backend for cell in self.cells})
        self._known_access: Access | None = None
        self._access = AccessControl(
            config, self._current_access, clock=clock, metrics=self.metrics
        )
        self._server = ApiServer(
            self._places,
            log_levels=LogLevelSwitch(asyncio.get_running_loop().call_later),
            replica_name=config.replica.name,
            tracing=self._telemetry.tracing,
            metrics=self.metrics,
            clock=clock,
            guard=self._access.guard,
            recorder=Recorder(notes, calls=config.audit.calls),
            listening=_listening(config, self._certificate, port_shared=port_shared),
        )

    def _cells_served(self) -> list[tuple[Labels, float]]:
        return [((cell.name,), float(cell.healthy)) for cell in self.cells]

    def _current_access(self) -> Access:
        """Return the access rules of the home cell, while that is away those that were known."""
        if self._home.wiring is not None and self._home.wiring.access.is_known:
            self._known_access = self._home.wiring.access
        if self._known_access is None or len(self.cells) == 1:
            return self._home.backend().access
        return self._known_access

    @property
    def database(self) -> str:
        """The database of the home cell, without a password."""
        return self._home.database

    @property
    def dsn(self) -> str:
        """How to connect to the home cell, with any password; empty until it is reached."""
        return self._home.dsn

    @property
    def replica_id(self) -> int:
        """The id of this replica in the home cell; 0 until it is reached."""
        return self._home.replica_id

    async def failed(self) -> None:
        """Wait for the engine to break; what broke is raised where it was entered."""
        await asyncio.Event().wait()

    async def listen(self) -> None:
        """Bind all addresses; requests get STORAGE_UNAVAILABLE until connected to PostgreSQL.

        Raises:
            ConfigError: An address cannot be bound.
        """
        self.metrics_url = await asyncio.to_thread(self._telemetry.open)
        try:
            self.addresses = tuple(await self._server.start())
        except errors.ConfigError:
            await asyncio.to_thread(self._telemetry.close)
            raise

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            watching = [
                group.create_task(self._watch_health(), name="health"),
                group.create_task(self._keep_places(), name="places"),
                *(
                    group.create_task(it.watch(), name="watch certificates")
                    for it in self._watched()
                ),
                *(
                    group.create_task(fetch(), name="fetch keys of an issuer")
                    for fetch in self._access.fetchers
                ),
            ]
            try:
                # An embedded PostgreSQL is stopped last: everything else is closed by then.
                async with databases(self._config) as dsns, asyncio.TaskGroup() as cells:
                    watching.append(cells.create_task(self._drain(), name="drain"))
                    for cell in self.cells:
                        cells.create_task(cell.run(dsns[cell.name]), name=f"cell {cell.name}")
            finally:
                await self._server.drain(dt.timedelta())
                for task in watching:
                    task.cancel()
                await asyncio.to_thread(self._telemetry.close)

    def stop(self) -> None:
        self._stop.set()

    def _watched(self) -> Iterator[Reloaded[Any]]:
        if self._certificate is not None:
            yield self._certificate
        yield from self._credentials.values()

    async def _drain(self) -> None:
        """Once the engine stops, let requests end; the cells drain beside it."""
        await self._stop.wait()
        serving = [cell.wiring for cell in self.cells if cell.wiring is not None]
        for wiring in serving:
            wiring.slots.draining = True

        async def steps_done() -> None:
            for wiring in serving:
                await wiring.slots.idle()

        if serving:
            await self._server.drain(self._config.server.drain_timeout, steps_done=steps_done)
        self._drained.set()

    def _interrupt(self, cell: Cell, error: errors.ProgressorError) -> None:
        """End the requests to a cell that are in flight."""
        calls = None if len(self.cells) == 1 else self._places.calls(cell.name)
        self._server.interrupt(error, calls)

    async def _watch_health(self) -> None:
        """Update the health checks and wake the callers waiting for `serving`."""
        told, loop = False, asyncio.get_running_loop()
        # A balancer must not prefer a replica that has just started to those that serve all cells.
        loop.call_later(_START_SECONDS, self._health_changed.set)
        until = loop.time() + _START_SECONDS
        while True:
            await self._health_changed.wait()
            self._health_changed.clear()
            is_starting = not self.serving.is_set() and loop.time() < until
            healthy = (all if is_starting else any)(cell.healthy for cell in self.cells)
            if self._placement is not None:
                self._places_stale.set()
                if healthy and not self.serving.is_set():
                    # Configured namespaces should be there when it is said to serve.
                    await self._placement.settled.wait()
            cells = {cell.name: cell.healthy for cell in self.cells}
            self._server.set_serving(serving=healthy, cells=cells)
            if healthy == told:
                continue
            told = healthy
            if self.serving.is_set() and not self._stop.is_set():
                _log.info("engine serving again" if healthy else "engine does not serve")
            if healthy:
                self.serving.set()

    async def _keep_places(self) -> None:
        """Read the directory of cells from time to time, and when one has come back."""
        while self._placement is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.scanner.interval.total_seconds()):
                    await self._places_stale.wait()
            self._places_stale.clear()
            await self._placement.settle(self._places)


def _listening(
    config: Config, certificate: Reloaded[TlsMaterial] | None, *, port_shared: bool
) -> Listening:
    server = config.server
    return Listening(
        bind=server.bind,
        message_bytes_max=server.message_bytes_max,
        streams_max=server.streams_max,
        session_calls_max=server.session_calls_max,
        port_shared=port_shared,
        tls=certificate,
        tls_client_ca_except=server.tls_client_ca_except,
        connection_age_max=server.connection_age,
    )


@contextlib.asynccontextmanager
async def databases(config: Config, *, replicas: int = 1) -> AsyncIterator[Mapping[str, str]]:
    """Yield how to connect to each cell; one PostgreSQL of our own has all that name none.

    It has room for so many replicas.

    Raises:
        EmbeddedPostgresError: It cannot be started.
    """
    given = {name: own.database.dsn for name, own in config.by_cell.items()}
    async with contextlib.AsyncExitStack() as stack:
        own = [name for name, dsn in given.items() if not dsn]
        if own:
            room = replicas * len(own)
            dsn = await stack.enter_async_context(embedded(config.database, replicas=room))
            for name in own:
                given[name] = await asyncio.to_thread(
                    ensure_database, dsn, config.embedded_name(name)
                )
        yield given


@contextlib.asynccontextmanager
async def embedded(database: Database, *, replicas: int = 1) -> AsyncIterator[str]:
    """Run a PostgreSQL of our own, with room for so many replicas; yields how to connect.

    Raises:
        EmbeddedPostgresError: It cannot be started.
    """
    postgres = EmbeddedPostgres(
        data_directory=database.data_directory,
        port=database.embedded_port,
        binaries=database.embedded_binaries,
        settings=room_for(replicas * database.connections_max),
    )
    try:
        dsn = await asyncio.to_thread(postgres.start)
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep(postgres), name="keep PostgreSQL")
            try:
                yield dsn
            finally:
                keeping.cancel()
    finally:
        await asyncio.to_thread(postgres.stop)


async def _keep(postgres: EmbeddedPostgres) -> None:
    """Start our own PostgreSQL again at the same address when it has ended."""
    while True:
        await asyncio.sleep(_KEEP_SECONDS)
        if not postgres.running:
            _log.error("the embedded PostgreSQL has ended; starting it again")
            try:
                await asyncio.to_thread(postgres.start)
            except errors.EmbeddedPostgresError as error:
                _log.warning("not started", extra={"why": str(error)})


@contextlib.asynccontextmanager
async def engine(
    config: Config,
    *,
    clock: Clock | None = None,
    observers: Observers | None = None,
    port_shared: bool = False,
    paused: bool = False,
) -> AsyncIterator[Engine]:
    """Run an engine for the length of the context; leaving it drains.

    It listens when the context is entered, and serves once ``Engine.serving`` is set. Only where
    `port_shared` may others listen on its port: those that `binding.reserved` is for. If `paused`,
    all namespaces of the database are paused before any step begins here.

    Raises:
        ConfigError: An address cannot be bound.
        ExceptionGroup: The engine broke.
    """
    running = Engine(
        config,
        clock=clock or SystemClock(),
        observers=observers or Observers(),
        port_shared=port_shared,
        paused=paused,
    )
    await running.listen()
    async with asyncio.TaskGroup() as group:
        main = group.create_task(running.run(), name="engine")
        try:
            yield running
        finally:
            running.stop()
            # Running steps end first, also when the host is cancelled.
            await asyncio.wait({main})
