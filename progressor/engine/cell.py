"""One cell of an engine: a database, from reaching it to leaving it.

Reach PostgreSQL (for as long as it takes), migrate, beat, scan, serve. If the database turns out to
have another lineage (a standby took over, or a backup was restored), the replica abandons its steps
and its callers, forgets all it knows, and starts again from there. Drain: stop the scanners, let
callers and steps finish within the drain timeout, hand back the leases of the rest, write what is
decided, stop the heartbeat, close channels and pools.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar, assert_never

import progressor
from progressor import errors
from progressor.api.calls.servicer import Backend
from progressor.clock import Clock
from progressor.domain.processes.namespace import Namespace
from progressor.engine.wiring import Wiring
from progressor.processor.credentials import Credentials
from progressor.runtime.core.context import Context, Observers
from progressor.runtime.core.leases import Ending
from progressor.runtime.upkeep.heartbeat import Heartbeat, Report
from progressor.settings.config import Config
from progressor.settings.namespaces import differing_keys
from progressor.storage.access.audit import AuditNotes
from progressor.storage.postgres.backoff import Backoff
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrate_configured
from progressor.storage.postgres.pools import Pools, open_pools
from progressor.storage.postgres.writer import connection_string
from progressor.storage.replicas.heartbeats import Heartbeats, Identity
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.replicas import draw_replica_id
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.traces.tracing import Tracing
from progressor.wire.tls import Reloaded

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_REACH_SECONDS = 0.25
_REACH_SECONDS_MAX = 2.0
_FLUSH_TIMEOUT = dt.timedelta(seconds=5)
_BROKEN_SECONDS = 5.0
PAUSED_AT_START = "serve --paused"
"""The reason of the pauses that a start makes."""

_BROKEN = "the cell cannot be served; the log of the replica says why"
_STARTING = "the engine has not reached PostgreSQL yet"
_LINEAGE_LOST = (
    "the database was restored, or a standby took over; what was acknowledged may be lost"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shared:
    """What the cells of one engine share."""

    clock: Clock
    observers: Observers
    tracing: Tracing
    credentials: Mapping[str, Reloaded[Credentials]]
    stop: asyncio.Event
    interrupt: "Callable[[Cell, errors.ProgressorError], None]"
    """Ends all requests to a cell that are in flight."""
    drained: Callable[[], Awaitable[object]]
    """Returns once requests have ended, within the drain timeout; only when the engine stops."""
    changed: Callable[[], None]
    """Is called when a cell becomes healthy, or is not any more."""


class Cell:
    def __init__(  # noqa: PLR0913  all but one keyword-only
        self,
        config: Config,
        *,
        name: str,
        shared: Shared,
        metrics: Metrics,
        audit_notes: AuditNotes,
        identify: Callable[[str, Pools], Awaitable[None]] | None,
        paused: bool,
    ) -> None:
        """Take the settings as of this cell alone.

        `identify` makes sure that a database is the one of the cell, and raises
        StorageUnavailableError if not; None for the only database of an engine.
        """
        self.name = name
        self.database = config.database.description
        self.metrics = metrics
        self.replica_id = 0
        self.dsn = ""
        """How to connect to its database, with any password; empty until it is reached."""
        self.healthy = False
        self.wiring: Wiring | None = None
        """What serves; None while it does not."""
        self._config, self._shared, self._identify = config, shared, identify
        self._audit_notes = audit_notes
        self._paused = paused
        self._stop = shared.stop
        self._facts: Mapping[str, object] = {} if identify is None else {"cell": name}
        self._where = {"database": self.database, **self._facts}
        self._entered = asyncio.Event()
        self._read_only = asyncio.Event()

    def backend(self) -> Backend:
        """Return what serves requests.

        Raises:
            StorageUnavailableError: The cell is not served now.
        """
        if self.wiring is None:
            raise errors.StorageUnavailableError(_STARTING)
        return self.wiring.backend

    async def run(self, dsn: str) -> None:
        """Serve the database until the engine stops.

        Whatever breaks one of several cells is logged, and tried again: the others go on.
        """
        while not self._stop.is_set():
            try:
                await self._run_replica(dsn)
            except Exception as error:
                if self._identify is None:
                    raise
                self._set_health(healthy=False)
                self._shared.interrupt(self, errors.StorageUnavailableError(_BROKEN))
                _log.exception("cell not served", extra=self._where)
                errors.forget_frames(error)
                await self._unless_stopped(asyncio.sleep(_BROKEN_SECONDS), name="pause")

    def _set_health(self, *, healthy: bool) -> None:
        if healthy != self.healthy:
            self.healthy = healthy
            self._shared.changed()

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
        for name in await _until_there(migrated, facts=self._where):
            _log.info("migration applied", extra={"migration": name, **self._facts})
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
        until_there = functools.partial(_until_there, facts=self._where, lost=lineage.lost.is_set)
        pools = await open_pools(database, dsn, check_new=lineage.check)
        stack.push_async_callback(pools.close)
        if self._identify is not None:
            await until_there(functools.partial(self._identify, self.name, pools))
        before = self.replica_id
        self.replica_id = await until_there(
            functools.partial(draw_replica_id, pools.scan, functions)
        )
        _log.info(
            "connected to PostgreSQL",
            extra={
                "database": self.database, "replica_id": self.replica_id, "epoch": lineage.epoch,
                **self._facts,
            },
        )  # fmt: skip
        context = Context(
            clock=self._shared.clock, observers=self._shared.observers, metrics=self.metrics,
            tracing=self._shared.tracing, replica_id=self.replica_id, epoch=lineage.epoch,
            replica=self._config.replica, scanner=self._config.scanner,
        )  # fmt: skip
        replies_dsn = connection_string(database, dsn, application="progressor replies")
        wiring = Wiring(
            self._config, replies_dsn, pools, context, functions, self._shared.credentials,
            lineage=lineage, audit_notes=self._audit_notes,
        )  # fmt: skip
        stack.push_async_callback(wiring.close)
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
        _log.info("migrating", extra={"progress": why, **self._facts})
        time.sleep(seconds)
        if self._stop.is_set():
            raise errors.StorageUnavailableError("the engine was stopped while it migrated")

    async def _create_namespaces(self, wiring: Wiring) -> None:
        for namespace in self._config.namespaces:
            try:
                await wiring.namespaces.create(namespace)
            except errors.NamespaceAlreadyExistsError:
                with contextlib.suppress(errors.NamespaceNotFoundError):
                    tell_difference(namespace, await wiring.namespaces.get(namespace.name))

    async def _pause_all(self, wiring: Wiring) -> None:
        """Pause all namespaces before this replica claims anything."""
        paused = await wiring.namespaces.pause(
            None, reason=PAUSED_AT_START, author=self._config.replica.name
        )
        _log.warning(
            "namespaces paused at the start",
            extra={
                "namespaces": [it.name for it in paused],
                **self._facts,
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
                    self.wiring = wiring
                    if await self._unless_stopped(wiring.lineage.lost.wait(), name="lineage"):
                        await self._abandon(wiring)
                    else:
                        await self._drain(wiring, heartbeat, group)
                for task in watching:
                    task.cancel()
        finally:
            self.wiring = None
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
                clock=self._shared.clock,
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
                self._set_health(healthy=False)
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
            _log.warning(
                "PostgreSQL is read-only; looking for a writable server", extra=self._facts
            )
            await wiring.leave_server()

    def _beat(self, wiring: Wiring) -> None:
        if wiring.slots.suspended:
            wiring.slots.suspended = wiring.leases.lost = False
            _log.info("claiming steps again", extra=self._facts)
            # What came due meanwhile found no place here.
            wiring.slots.room_made.set()
        wiring.look()
        self._entered.set()
        self._set_health(healthy=True)
        self._shared.observers.tell("beat")

    async def _abandon(self, wiring: Wiring) -> None:
        """Let go of steps and callers: what this replica knows is of another lineage."""
        _log.warning("abandoning all steps: the database has another lineage", extra=self._facts)
        self.wiring = None
        self._set_health(healthy=False)
        self._shared.interrupt(self, errors.StorageUnavailableError(_LINEAGE_LOST))
        await wiring.abandon()

    async def _drain(self, wiring: Wiring, heartbeat: Heartbeat, group: asyncio.TaskGroup) -> None:
        """Finish the running steps and requests, and leave the rest to other replicas."""
        _log.info("draining", extra={"waiting": wiring.replies.waiting_count, **self._facts})
        wiring.slots.draining = True
        heartbeat.drain()
        group.create_task(wiring.stop_scanning(), name="stop scanning")
        deadline = self._config.server.drain_timeout
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                await wiring.slots.idle()
        except TimeoutError:
            wiring.leases.let_go(Ending.RELEASED)
        await self._shared.drained()
        # What the processor has answered is written; nothing but PostgreSQL can hold this up.
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT.total_seconds()):
                await wiring.finish()
        except TimeoutError:
            _log.warning(
                "leaving settlements to other replicas: PostgreSQL does not answer",
                extra=self._facts,
            )
            wiring.cancel()


async def _until_there(
    ask: Callable[[], Awaitable[Answer]],
    *,
    facts: Mapping[str, object],
    lost: Callable[[], bool] = lambda: False,
) -> Answer:
    """Return PostgreSQL's answer, waiting as long as it takes; the log has the `facts`.

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
            why = " ".join(error.why.split())
            is_other = isinstance(error, errors.StorageIdentityError)
            words = "database not served" if is_other else "PostgreSQL is unreachable"
            _log.warning(words, extra={**facts, "why": why})
            await asyncio.sleep(backoff.pause())


def tell_difference(configured: Namespace, stored: Namespace) -> None:
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
