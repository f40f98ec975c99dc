"""The composition root: builds an engine (with ``wiring``) as one tree of tasks.

Start: listen (NOT_SERVING), reach PostgreSQL (for as long as it takes), migrate, beat, scan, serve.
If the database turns out to have another lineage (a standby took over, or a backup was restored),
the replica abandons its steps and its callers, forgets all it knows, and starts again from there.
Drain: NOT_SERVING, stop the scanners, let callers and steps finish within the drain timeout, hand
back the leases of the rest, write what is decided, stop the heartbeat, close channels and pools.
"""

import asyncio
import contextlib
import datetime as dt
import functools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar, assert_never

import progressor
from progressor import errors
from progressor.api.calls.servicer import Backend
from progressor.api.guard.audit import Recorder
from progressor.api.server.server import ApiServer, Listening
from progressor.clock import Clock, SystemClock
from progressor.domain.processes.namespace import Namespace
from progressor.engine.access import AccessControl
from progressor.engine.certificates import (
    metrics_context,
    processor_credentials,
    server_certificate,
)
from progressor.engine.wiring import Wiring
from progressor.runtime.core.context import Context, Observers
from progressor.runtime.core.leases import Ending
from progressor.runtime.upkeep.heartbeat import Heartbeat, Report
from progressor.settings.config import Config
from progressor.settings.namespaces import differing_keys
from progressor.settings.sections import Database
from progressor.storage.access.audit import AuditNotes
from progressor.storage.embedded.server import EmbeddedPostgres
from progressor.storage.embedded.settings import room_for
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate_configured
from progressor.storage.postgres.pools import open_pools
from progressor.storage.postgres.writer import connection_string
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.replicas import draw_replica_id
from progressor.telemetry.logs.level import LogLevelSwitch
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.setup import ReplicaTelemetry
from progressor.wire.tls import Reloaded

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_REACH_SECONDS = 0.25
_REACH_SECONDS_MAX = 2.0
_KEEP_SECONDS = 1.0
_FLUSH_TIMEOUT = dt.timedelta(seconds=5)
PAUSED_AT_START = "serve --paused"
"""The reason of the pauses that a start makes."""

_STARTING = "the engine has not reached PostgreSQL yet"
_LINEAGE_LOST = (
    "the database was restored, or a standby took over; what was acknowledged may be lost"
)


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
        self.database = config.database.description
        self.metrics = Metrics()
        self.metrics_url = ""
        """Where Prometheus reads them; empty: nowhere."""
        self.dsn = ""
        """How to connect to its database, with any password; empty until it is reached."""
        self.serving = asyncio.Event()
        self.observers = observers
        self.replica_id = 0
        self._config = config
        self._paused = paused
        self._clock = clock
        self._stop = asyncio.Event()
        self._entered = asyncio.Event()
        self._read_only = asyncio.Event()
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
        self._wiring: Wiring | None = None
        self._audit_notes = AuditNotes(clock)
        self._health = _Health()
        self._access = AccessControl(
            config, lambda: self._backend().access, clock=clock, metrics=self.metrics
        )
        self._server = ApiServer(
            self._backend,
            log_levels=LogLevelSwitch(asyncio.get_running_loop().call_later),
            replica_name=config.replica.name,
            tracing=self._telemetry.tracing,
            metrics=self.metrics,
            clock=clock,
            guard=self._access.guard,
            recorder=Recorder(self._audit_notes, calls=config.audit.calls),
            listening=Listening(
                bind=config.server.bind,
                message_bytes_max=config.server.message_bytes_max,
                streams_max=config.server.streams_max,
                session_calls_max=config.server.session_calls_max,
                port_shared=port_shared,
                tls=self._certificate,
                tls_client_ca_except=config.server.tls_client_ca_except,
                connection_age_max=config.server.connection_age,
            ),
        )

    async def failed(self) -> None:
        """Wait for the engine to break; what broke is raised where it was entered."""
        await asyncio.Event().wait()

    def _backend(self) -> Backend:
        if self._wiring is None:
            raise errors.StorageUnavailableError(_STARTING)
        return self._wiring.backend

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
                async with contextlib.AsyncExitStack() as stack:
                    dsn = self._config.database.dsn
                    if not dsn:
                        # Stopped last: everything else is closed by then.
                        dsn = await stack.enter_async_context(embedded(self._config.database))
                    while not self._stop.is_set():
                        await self._run_replica(dsn)
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

    async def _run_replica(self, dsn: str) -> None:
        """Serve for as long as the lineage lasts, and the engine is not stopped."""
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self.metrics.detaching())
            reach = self._reach_lineage(dsn, stack)
            reached = await self._unless_stopped(reach, name="reach PostgreSQL")
            if reached is not None:
                await self._serve(reached)

    async def _unless_stopped(
        self, waiting: Coroutine[Any, Any, Answer], *, name: str
    ) -> Answer | None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(waiting, name=name)
            stopping = group.create_task(self._stop.wait(), name="stop")
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
            stopping.cancel()
        return None if task.cancelled() else task.result()

    async def _reach_lineage(self, dsn: str, stack: contextlib.AsyncExitStack) -> Wiring | None:
        """Reach PostgreSQL, however long it takes; None: the lineage was lost meanwhile."""
        migrated = functools.partial(
            asyncio.to_thread,
            migrate_configured,
            self._config.database,
            dsn,
            wait=self._wait_to_migrate,
        )
        for name in await _until_there(migrated, database=self.database):
            _log.info("migration applied", extra={"migration": name})
        lineage = Lineage(Functions())
        try:
            return await self._reach(dsn, lineage, stack)
        except errors.StorageUnavailableError:
            return None

    async def _reach(self, dsn: str, lineage: Lineage, stack: contextlib.AsyncExitStack) -> Wiring:
        """Build what serves.

        Raises:
            StorageUnavailableError: The lineage was lost meanwhile.
        """
        database, functions = self._config.database, Functions()
        until_there = functools.partial(
            _until_there, database=self.database, lost=lineage.lost.is_set
        )
        pools = await open_pools(database, dsn, check_new=lineage.check)
        stack.push_async_callback(pools.close)
        before = self.replica_id
        self.replica_id = await until_there(
            functools.partial(draw_replica_id, pools.scan, functions)
        )
        _log.info(
            "connected to PostgreSQL",
            extra={
                "database": self.database, "replica_id": self.replica_id, "epoch": lineage.epoch
            },
        )  # fmt: skip
        context = Context(
            clock=self._clock, observers=self.observers, metrics=self.metrics,
            tracing=self._telemetry.tracing, replica_id=self.replica_id, epoch=lineage.epoch,
            replica=self._config.replica, scanner=self._config.scanner,
        )  # fmt: skip
        replies_dsn = connection_string(database, dsn, application="progressor replies")
        wiring = Wiring(
            self._config, replies_dsn, pools, context, functions, self._credentials,
            lineage=lineage, audit_notes=self._audit_notes,
        )  # fmt: skip
        await until_there(functools.partial(self._create_namespaces, wiring))
        # A request right after the start must not be refused because no identity is known yet.
        await until_there(wiring.access.refresh)
        if self._paused:
            await until_there(functools.partial(self._pause_all, wiring))
            self._paused = False
        if before:
            # Its steps have ended: nobody has to wait until its leases expire.
            await until_there(functools.partial(wiring.replicas.retire, before))
        self.dsn = dsn
        return wiring

    def _wait_to_migrate(self, why: str, seconds: float) -> None:
        """Let a migration wait, unless the engine is stopped; in the thread that migrates."""
        _log.info("migrating", extra={"progress": why})
        time.sleep(seconds)
        if self._stop.is_set():
            raise errors.StorageUnavailableError("the engine was stopped while it migrated")

    async def _create_namespaces(self, wiring: Wiring) -> None:
        for namespace in self._config.namespaces:
            try:
                await wiring.namespaces.create(namespace)
            except errors.NamespaceAlreadyExistsError:
                with contextlib.suppress(errors.NamespaceNotFoundError):
                    _tell_difference(namespace, await wiring.namespaces.get(namespace.name))

    async def _pause_all(self, wiring: Wiring) -> None:
        """Pause all namespaces before this replica claims anything."""
        paused = await wiring.namespaces.pause(
            None, reason=PAUSED_AT_START, author=self._config.replica.name
        )
        _log.warning(
            "namespaces paused at the start",
            extra={
                "namespaces": [it.name for it in paused],
                "advice": "look around, then `progressor namespace resume --all`",
            },
        )

    async def _serve(self, wiring: Wiring) -> None:
        """Serve until the engine is stopped, which drains it, or the lineage is lost."""
        self._entered.clear()
        heartbeat = self._heartbeat(wiring)
        self.metrics.heartbeat_age.read_from(lambda: [((), heartbeat.age_seconds)])
        heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                watching = [
                    group.create_task(heartbeat.watch(), name="watch leases"),
                    group.create_task(self._leave_read_only(wiring), name="leave read-only"),
                ]
                # To the others, what a replica leases before its first heartbeat is a zombie.
                if await self._unless_stopped(self._entered.wait(), name="first heartbeat"):
                    wiring.start(group)
                    self._wiring = wiring
                    if await self._unless_stopped(wiring.lineage.lost.wait(), name="lineage"):
                        await self._abandon(wiring)
                    else:
                        await self._drain(wiring, heartbeat, group)
                for task in watching:
                    task.cancel()
        finally:
            self._wiring = None
            await asyncio.to_thread(heartbeat.stop)
        if not wiring.lineage.lost.is_set():
            with contextlib.suppress(errors.StorageError):
                await wiring.replicas.retire(self.replica_id)

    def _heartbeat(self, wiring: Wiring) -> Heartbeat:
        return Heartbeat(
            heartbeats=Heartbeats(
                dsn=connection_string(
                    self._config.database, self.dsn, application="progressor heartbeat"
                ),
                identity=Identity(
                    replica_id=self.replica_id,
                    name=self._config.replica.name,
                    version=progressor.__version__,
                    functions=wiring.functions.schema,
                ),
                lineage=wiring.lineage,
                replica=self._config.replica,
                clock=self._clock,
            ),
            context=wiring.context,
            loop=asyncio.get_running_loop(),
            load=wiring.load,
            report=functools.partial(self._take_report, wiring),
            hear=wiring.hear,
        )

    def _take_report(self, wiring: Wiring, report: Report) -> None:
        match report:
            case Report.WRITTEN:
                self._beat(wiring)
            case Report.MISSED:
                self._health.set(healthy=False)
            case Report.READ_ONLY:
                self._read_only.set()
            case Report.OTHER_LINEAGE:
                wiring.lineage.lost.set()
                self._entered.set()
            case Report.LOST:
                wiring.slots.suspended = wiring.leases.lost = True
                wiring.let_go()
            case _:
                assert_never(report)

    async def _leave_read_only(self, wiring: Wiring) -> None:
        """Disconnect from a server that has become read-only; ends only by cancellation."""
        while True:
            await self._read_only.wait()
            self._read_only.clear()
            _log.warning("PostgreSQL is read-only; looking for a writable server")
            await wiring.leave_server()

    def _beat(self, wiring: Wiring) -> None:
        if wiring.slots.suspended:
            wiring.slots.suspended = wiring.leases.lost = False
            _log.info("claiming steps again")
            # What came due meanwhile found no place here.
            wiring.slots.room_made.set()
        wiring.look()
        self._entered.set()
        self._health.set(healthy=True)
        self.observers.tell("beat")

    async def _abandon(self, wiring: Wiring) -> None:
        """Let go of steps and callers: what this replica knows is of another lineage."""
        _log.warning("abandoning all steps: the database has another lineage")
        self._wiring = None
        self._health.set(healthy=False)
        self._server.interrupt(errors.StorageUnavailableError(_LINEAGE_LOST))
        await wiring.abandon()

    async def _drain(self, wiring: Wiring, heartbeat: Heartbeat, group: asyncio.TaskGroup) -> None:
        """Finish the running steps and requests, and leave the rest to other replicas."""
        _log.info("draining", extra={"waiting": wiring.replies.waiting_count})
        wiring.slots.draining = True
        heartbeat.drain()
        group.create_task(wiring.stop_scanning(), name="stop scanning")
        deadline = self._config.server.drain_timeout
        draining = group.create_task(
            self._server.drain(deadline, steps_done=wiring.slots.idle), name="drain server"
        )
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                await wiring.slots.idle()
        except TimeoutError:
            wiring.leases.let_go(Ending.RELEASED)
        await draining
        # What the processor has answered is written; nothing but PostgreSQL can hold this up.
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT.total_seconds()):
                await wiring.finish()
        except TimeoutError:
            _log.warning("leaving settlements to other replicas: PostgreSQL does not answer")
            wiring.cancel()

    async def _watch_health(self) -> None:
        """Update the health checks and wake the callers waiting for `serving`."""
        while True:
            healthy = await self._health.changed()
            self._server.set_serving(serving=healthy)
            if self.serving.is_set() and not self._stop.is_set():
                _log.info("engine serving again" if healthy else "engine does not serve")
            if healthy:
                self.serving.set()


async def _until_there(
    ask: Callable[[], Awaitable[Answer]],
    *,
    database: str,
    lost: Callable[[], bool] = lambda: False,
) -> Answer:
    """Return PostgreSQL's answer, waiting as long as it takes; the log names the `database`.

    Raises:
        StorageUnavailableError: There was none, and none will come, since `lost`.
    """
    backoff = Backoff(
        first=_REACH_SECONDS,
        longest=_REACH_SECONDS_MAX,
        jitter=lambda: random.uniform(-1, 1),  # noqa: S311  jitter, not a secret
    )
    while True:
        try:
            return await ask()
        except errors.StorageUnavailableError as error:
            if lost():
                raise
            facts = {"database": database, "why": " ".join(error.why.split())}
            _log.warning("PostgreSQL is unreachable", extra=facts)
            await asyncio.sleep(backoff.pause())


def _tell_difference(configured: Namespace, stored: Namespace) -> None:
    keys = differing_keys(configured, stored)
    if keys:
        _log.warning(
            "namespace differs from the configuration",
            extra={
                "namespace": stored.name,
                "keys": keys,
                "revision": stored.revision,
                "advice": "the database takes precedence; see `progressor namespace apply`",
            },
        )


class _Health:
    def __init__(self) -> None:
        self._healthy = False
        self._told = False
        self._event = asyncio.Event()

    def set(self, *, healthy: bool) -> None:
        self._healthy = healthy
        if healthy != self._told:
            self._event.set()

    async def changed(self) -> bool:
        await self._event.wait()
        self._event.clear()
        self._told = self._healthy
        return self._told


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
