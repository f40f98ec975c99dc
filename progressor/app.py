"""The composition root: the only file that builds things, and puts them into one tree of tasks.

Start: listen (NOT_SERVING), reach PostgreSQL (for as long as it takes), migrate, beat, scan, serve.
Drain: NOT_SERVING, stop the scanners, let callers and steps finish within the drain timeout, hand
back the leases of the rest, write what is decided, stop the heartbeat, close channels and pools.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import progressor
from progressor import errors
from progressor.api.ports import Intake as IntakePort
from progressor.api.ports import Namespaces as NamespacesPort
from progressor.api.ports import Processes as ProcessesPort
from progressor.api.binding import Tls
from progressor.api.server import ApiServer, Listening
from progressor.clock import Clock, SystemClock
from progressor.config import Config
from progressor.processor.channels import Channels
from progressor.processor.client import ProcessorClient
from progressor.scanner.backlog import Backlog
from progressor.scanner.due import DueScan
from progressor.scanner.loop import repeat
from progressor.scanner.places import Places
from progressor.scanner.retention import RetentionScan
from progressor.scanner.timers import Timers
from progressor.scanner.zombies import ZombieScan
from progressor.settings.addresses import redact_dsn
from progressor.storage import results
from progressor.storage.admissions import Admissions
from progressor.storage.claims import Claims
from progressor.storage.embedded import EmbeddedPostgres
from progressor.storage.functions import Functions
from progressor.storage.histories import Histories
from progressor.storage.migrations import migrate
from progressor.storage.namespaces import Namespaces
from progressor.storage.pools import Pools, open_pools
from progressor.storage.processes import Processes
from progressor.storage.replicas import Identity, Replicas
from progressor.storage.results import Results
from progressor.storage.retention import Retention
from progressor.storage.settlements import Settlements
from progressor.worker.aftermath import Aftermath
from progressor.worker.agenda import Agenda
from progressor.worker.heartbeat import Heartbeat
from progressor.worker.intake import Intake
from progressor.worker.leases import Ending, Leases
from progressor.worker.observer import Observers
from progressor.worker.replies import Replies
from progressor.worker.snapshots import Snapshots
from progressor.worker.step import Steps
from progressor.worker.workers import Workers

_log = logging.getLogger(__name__)

_AGENDA_MAX = 100_000
_RECONNECT_SECONDS = 1.0
_FLUSH_TIMEOUT = dt.timedelta(seconds=5)
_STARTING = "the engine has not reached PostgreSQL yet"


class Engine:
    """A running engine; `engine` makes one."""

    def __init__(self, config: Config, *, clock: Clock, observers: Observers) -> None:
        """Open nothing."""
        self.addresses: tuple[str, ...] = ()
        self.database = redact_dsn(config.database.dsn) if config.database.dsn else (
            f"embedded PostgreSQL in {config.database.data_directory}"
        )
        self.dsn = ""
        """How to connect to its database, with any password; empty until it is reached."""
        self.serving = asyncio.Event()
        self.observers = observers
        self.replica_id = 0
        self._config = config
        self._clock = clock
        self._stop = asyncio.Event()
        self._doors = _Doors()
        self._health = _Health()
        tls = None
        if config.server.tls_certificate is not None and config.server.tls_key is not None:
            tls = Tls(certificate=config.server.tls_certificate, key=config.server.tls_key)
        self._server = ApiServer(
            intake=cast("IntakePort", self._doors.intake),
            processes=cast("ProcessesPort", self._doors.processes),
            namespaces=cast("NamespacesPort", self._doors.namespaces),
            clock=clock,
            listening=Listening(
                bind=config.server.bind,
                message_bytes_max=config.server.message_bytes_max,
                streams_max=config.server.streams_max,
                tls=tls,
            ),
        )

    async def failed(self) -> None:
        """Wait for the engine to break; what broke is raised where it was entered."""
        await asyncio.Event().wait()

    async def run(self) -> None:
        """Run until `stop`, then drain."""
        self.addresses = tuple(await self._server.start())
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch_health(), name="health")
            try:
                async with contextlib.AsyncExitStack() as stack:
                    opened = await self._open(stack)
                    if opened is not None:
                        await self._serve(opened)
            finally:
                await self._server.drain(dt.timedelta())
                watching.cancel()

    def stop(self) -> None:
        """Begin to drain."""
        self._stop.set()

    async def _open(self, stack: contextlib.AsyncExitStack) -> "_Opened | None":
        """Reach PostgreSQL, however long it takes; None if the engine is stopped first."""
        opening = asyncio.ensure_future(self._reach(stack))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return opening.result() if opening.done() else None
        finally:
            for task in (opening, stopping):
                task.cancel()
            await asyncio.wait({opening, stopping})

    async def _reach(self, stack: contextlib.AsyncExitStack) -> "_Opened":
        config = self._config
        dsn = config.database.dsn
        if not dsn:
            postgres = EmbeddedPostgres(
                data_directory=config.database.data_directory,
                port=config.database.embedded_port,
                binaries=config.database.embedded_binaries,
            )
            # Stopped last: everything below is closed by then.
            stack.push_async_callback(asyncio.to_thread, postgres.stop)
            dsn = await asyncio.to_thread(postgres.start)
        while True:
            try:
                for name in await asyncio.to_thread(migrate, dsn):
                    _log.info("migration applied", extra={"migration": name})
                pools = await open_pools(config.database, dsn)
                stack.push_async_callback(pools.close)
                replicas = Replicas(pool=pools.scan, clock=self._clock)
                self.replica_id = await replicas.draw_id()
                break
            except errors.StorageUnavailableError as error:
                _log.warning("PostgreSQL is away", extra={"why": error.why})
                await asyncio.sleep(_RECONNECT_SECONDS)
        self.dsn = dsn
        return _Opened(
            config, dsn, pools, replicas, self.replica_id, clock=self._clock,
            observers=self.observers,
        )  # fmt: skip

    async def _serve(self, opened: "_Opened") -> None:
        for namespace in self._config.namespaces:
            with contextlib.suppress(errors.NamespaceAlreadyExistsError):
                await opened.namespaces.create(namespace)
        heartbeat = self._heartbeat(opened)
        heartbeat.start()
        try:
            async with asyncio.TaskGroup() as group:
                opened.start(group)
                self._doors.open(opened)
                await self._stop.wait()
                await self._drain(opened, heartbeat)
        finally:
            self._doors.close()
            await asyncio.to_thread(heartbeat.stop)
        with contextlib.suppress(errors.StorageError):
            await opened.replicas.retire(self.replica_id)

    def _heartbeat(self, opened: "_Opened") -> Heartbeat:
        return Heartbeat(
            dsn=opened.dsn,
            identity=Identity(
                replica_id=self.replica_id,
                name=self._config.replica.name,
                version=progressor.__version__,
                functions=opened.functions.schema,
            ),
            replica=self._config.replica,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            on_beat=lambda: self._health.set(healthy=True),
            on_miss=lambda: self._health.set(healthy=False),
            on_lost=lambda: opened.leases.let_go(Ending.ABANDONED),
        )

    async def _drain(self, opened: "_Opened", heartbeat: Heartbeat) -> None:
        """Let what is in hand come to its end, and leave the rest to others."""
        _log.info("draining", extra={"waiting": opened.replies.waiting_count})
        opened.workers.draining = True
        heartbeat.drain()
        opened.stop_scanning()
        deadline = self._config.server.drain_timeout
        draining = asyncio.ensure_future(self._server.drain(deadline))
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                await opened.workers.idle()
        except TimeoutError:
            opened.leases.let_go(Ending.RELEASED)
        await draining
        # What the processor has answered is written; nothing but PostgreSQL can hold this up.
        try:
            async with asyncio.timeout(_FLUSH_TIMEOUT.total_seconds()):
                await opened.finish()
        except TimeoutError:
            _log.warning("settlements left to the other replicas: PostgreSQL does not answer")
            opened.cancel()

    async def _watch_health(self) -> None:
        """Tell health checks, and whoever waits for `serving`, how things are."""
        while True:
            healthy = await self._health.changed()
            await self._server.set_serving(serving=healthy)
            if healthy:
                self.serving.set()


class _Health:
    """Whether PostgreSQL answers, told from one place to another."""

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


class _Door:
    """Stands for a collaborator that exists once PostgreSQL is reached."""

    def __init__(self) -> None:
        self._behind: object | None = None

    def lead_to(self, behind: object | None) -> None:
        self._behind = behind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  it stands for anything
        if self._behind is None:
            raise errors.StorageUnavailableError(_STARTING)
        return getattr(self._behind, name)


class _Doors:
    """What the server is given before there is anything behind it."""

    def __init__(self) -> None:
        self.intake, self.processes, self.namespaces = _Door(), _Door(), _Door()

    def open(self, opened: "_Opened") -> None:
        self.intake.lead_to(opened.intake)
        self.processes.lead_to(opened.processes)
        self.namespaces.lead_to(opened.namespaces)

    def close(self) -> None:
        for door in (self.intake, self.processes, self.namespaces):
            door.lead_to(None)


class _Opened:
    """All that there is once PostgreSQL is reached."""

    def __init__(  # noqa: PLR0913, PLR0915  it builds the rest
        self,
        config: Config,
        dsn: str,
        pools: Pools,
        replicas: Replicas,
        replica_id: int,
        *,
        clock: Clock,
        observers: Observers,
    ) -> None:
        self.dsn = dsn
        self.replicas = replicas
        self.functions = functions = Functions()
        self._config, self._pools, self._observers = config, pools, observers
        self._spread = random.Random()  # noqa: S311  jitter, not a secret

        def own_id() -> int:
            return replica_id

        def count_batch(name: str, size: int) -> None:
            observers.tell("batch", write=name, size=size)

        timeout, grace = config.database.statement_timeout, config.replica.step_grace
        self.namespaces = Namespaces(pool=pools.front, clock=clock)
        histories = Histories(pool=pools.front)
        self.processes = Processes(
            pool=pools.front, functions=functions, clock=clock, replica_id=own_id,
            histories=histories, statement_timeout=timeout,
        )  # fmt: skip
        self._admissions = Admissions(
            pool=pools.front, functions=functions, clock=clock, replica_id=own_id,
            commit=config.commit, statement_timeout=timeout, on_batch=count_batch,
        )  # fmt: skip
        self._settlements = Settlements(
            pool=pools.worker, functions=functions, clock=clock, replica_id=own_id,
            commit=config.commit, step_grace=grace, statement_timeout=timeout,
            on_batch=count_batch,
        )  # fmt: skip
        self._claims = Claims(
            functions=functions, clock=clock, replica_id=own_id, step_grace=grace,
            statement_timeout=timeout,
        )  # fmt: skip
        self._results = Results(
            pool=pools.front, functions=functions, clock=clock, replica_id=own_id
        )
        self.leases = Leases()
        self.replies = Replies(
            results=self._results,
            listen=lambda: results.listen(dsn, replica_id),
            carried=self.leases.carries,
            clock=clock,
            observers=observers,
        )
        self._agenda = Agenda(clock=clock, horizon=config.scanner.horizon, size_max=_AGENDA_MAX)
        self._aftermath = Aftermath(
            replies=self.replies, agenda=self._agenda, replica_id=own_id
        )
        self._channels = Channels()
        self._steps = Steps(
            processor=ProcessorClient(self._channels, clock),
            settlements=self._settlements,
            histories=Histories(pool=pools.worker),
            namespaces=self.namespaces,
            snapshots=Snapshots(bytes_max=config.snapshots.bytes_max),
            aftermath=self._aftermath,
            leases=self.leases,
            clock=clock,
            spread=self._spread,
            step_grace=grace,
            observers=observers,
        )
        self.workers = Workers(lambda task: self._steps.carry(task, self.workers))
        self.intake = Intake(
            admissions=self._admissions,
            workers=self.workers,
            replies=self.replies,
            results=self._results,
            processes=self.processes,
            namespaces=self.namespaces,
            agenda=self._agenda,
            aftermath=self._aftermath,
            step_grace=grace,
            observers=observers,
        )
        self._places = Places(workers=self.workers, step_grace=grace)
        self._replica_id = own_id
        self._workers_stop = asyncio.Event()
        self._scanners: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []
        self._workers_task: asyncio.Task[None] | None = None
        self._replies_task: asyncio.Task[None] | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to write, carry, answer and scan."""
        self._writers = [
            group.create_task(self._admissions.run(), name="admissions"),
            group.create_task(self._settlements.run(), name="settlements"),
        ]
        self._workers_task = group.create_task(
            self.workers.run(self._workers_stop), name="workers"
        )
        self._replies_task = group.create_task(self.replies.run(), name="replies")
        scanner, observers = self._config.scanner, self._observers
        timers = Timers(
            agenda=self._agenda, claims=self._claims, namespaces=self.namespaces,
            places=self._places, pool=self._pools.worker, batch_max=scanner.batch_max,
            observers=observers,
        )  # fmt: skip
        backlog = Backlog(
            claims=self._claims, namespaces=self.namespaces, places=self._places,
            pool=self._pools.worker, batch_max=scanner.batch_max, observers=observers,
        )  # fmt: skip
        due = DueScan(
            claims=self._claims, namespaces=self.namespaces, places=self._places,
            agenda=self._agenda, pool=self._pools.scan, scanner=scanner,
            replica=self._config.replica, observers=observers,
        )  # fmt: skip
        zombies = ZombieScan(
            replicas=self.replicas, settlements=self._settlements, namespaces=self.namespaces,
            aftermath=self._aftermath, leases=self.leases, replica_id=self._replica_id,
            replica=self._config.replica, scanner=scanner, spread=self._spread,
            observers=observers,
        )  # fmt: skip
        retention = RetentionScan(
            retention=Retention(
                pool=self._pools.scan, functions=self.functions, clock=SystemClock()
            ),
            results=self._results, replicas=self.replicas, namespaces=self.namespaces,
            scanner=scanner,
        )  # fmt: skip
        scans = {
            "due": (due.scan, scanner.interval),
            "zombies": (zombies.scan, scanner.interval),
            "retention": (retention.scan, scanner.retention_interval),
        }
        self._scanners = [
            group.create_task(timers.run(), name="timers"),
            group.create_task(backlog.run(), name="backlog"),
            *(
                group.create_task(
                    repeat(
                        scan, name=name, interval=interval, spread=self._spread,
                        observers=observers,
                    ),
                    name=f"scan {name}",
                )  # fmt: skip
                for name, (scan, interval) in scans.items()
            ),
        ]

    def stop_scanning(self) -> None:
        """Bring no more work. A claim in flight is a zombie, collected at once by others."""
        for task in self._scanners:
            task.cancel()

    async def finish(self) -> None:
        """Wait for the steps in hand, then write what is decided, and close the channels."""
        await self.workers.idle()
        self._workers_stop.set()
        self._admissions.close()
        self._settlements.close()
        await asyncio.wait(self._writers)
        await self._close()

    def cancel(self) -> None:
        """Give up what could not be written in time."""
        for task in (*self._writers, self._workers_task, self._replies_task):
            if task is not None:
                task.cancel()

    async def _close(self) -> None:
        assert self._replies_task is not None, "closed after it was started"
        self._replies_task.cancel()
        await self._channels.close()


@contextlib.asynccontextmanager
async def engine(
    config: Config, *, clock: Clock | None = None, observers: Observers | None = None
) -> AsyncIterator[Engine]:
    """Run an engine for the length of the context; leaving it drains.

    It listens when the context is entered, and serves once ``Engine.serving`` is set.

    Raises:
        ConfigError: An address cannot be bound.
        ExceptionGroup: The engine broke.
    """
    running = Engine(
        config, clock=clock or SystemClock(), observers=observers or Observers()
    )
    async with asyncio.TaskGroup() as group:
        main = group.create_task(running.run(), name="engine")
        try:
            while not running.addresses and not main.done():
                await asyncio.sleep(0)
            yield running
        finally:
            running.stop()
            # Also where the host is cancelled: what is in hand comes to its end first.
            await asyncio.wait({main})
