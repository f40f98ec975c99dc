"""The parts of an engine, put together: what there is once connected to PostgreSQL.

One half of the composition root; the other is ``engine``, which says when things start and end.
"""

import asyncio
import contextlib
import dataclasses
import random

from progressor import errors
from progressor.api.calls.ports import Backend
from progressor.clock import Clock, SystemClock
from progressor.domain.views.replica import LOADS_MAX, NamespaceLoad, ReplicaLoad
from progressor.processor.channels import Channels
from progressor.processor.client import ProcessorClient
from progressor.runtime.core.context import Context
from progressor.runtime.core.counters import Counters
from progressor.runtime.core.leases import Leases
from progressor.runtime.core.loop import JITTER, repeat
from progressor.runtime.core.measures import MILLISECONDS, StepMeasures
from progressor.runtime.core.observer import Observers
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.effects.gate_queue import GateQueue
from progressor.runtime.effects.replies import Replies
from progressor.runtime.effects.upkeep_queue import UpkeepQueue
from progressor.runtime.gates.capacities import GateCapacities
from progressor.runtime.gates.lowered_gates import LoweredGates
from progressor.runtime.gates.scan import GateScan
from progressor.runtime.gates.wake_ups import GateWakeUps
from progressor.runtime.jobs.control import JobControl
from progressor.runtime.jobs.job_steps import JobSteps
from progressor.runtime.jobs.upkeep import JobScan
from progressor.runtime.requests.requests import Requests
from progressor.runtime.schedules.runs import ScheduleRuns
from progressor.runtime.schedules.scan import ScheduleScan
from progressor.runtime.step.histories import StepHistories
from progressor.runtime.step.history_cache import HistoryCache
from progressor.runtime.step.step import Steps
from progressor.runtime.timers.backlog import Backlog
from progressor.runtime.timers.due import DueScan
from progressor.runtime.timers.reservations import SlotReservations
from progressor.runtime.timers.timers import Timers
from progressor.runtime.upkeep.queues import INTERVAL as QUEUES_INTERVAL
from progressor.runtime.upkeep.queues import QueueScan
from progressor.runtime.upkeep.retention import RetentionScan
from progressor.runtime.upkeep.zombies import ZombieScan
from progressor.settings.config import Config
from progressor.storage.commit.group_commit import CommitContext, Waiting
from progressor.storage.gates.gates import Gates
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, Pools
from progressor.storage.processes import results
from progressor.storage.processes.admissions import Admissions
from progressor.storage.processes.claims import Claims
from progressor.storage.processes.processes import Processes
from progressor.storage.processes.reads.histories import Histories
from progressor.storage.processes.results import Results
from progressor.storage.processes.retention import Retention
from progressor.storage.processes.settlements import Settlements
from progressor.storage.replicas.activities import Activities
from progressor.storage.replicas.queues import Queues, QueueWatch
from progressor.storage.replicas.replicas import Replicas, Roster
from progressor.storage.replicas.status import Watch
from progressor.storage.schedules.runs import StoredRuns
from progressor.storage.schedules.schedules import Schedules
from progressor.telemetry.instruments import Labels
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.setup import ReplicaTracing

_DUE_QUEUE_MAX = 100_000
_TO_PROCESSORS: Labels = ("processor",)


class Wiring:
    """All that there is once connected to PostgreSQL."""

    def __init__(  # noqa: PLR0913  it builds the rest
        self,
        config: Config,
        dsn: str,
        pools: Pools,
        replicas: Replicas,
        replica_id: int,
        *,
        clock: Clock,
        observers: Observers,
        telemetry: ReplicaTracing,
        metrics: Metrics,
    ) -> None:
        self.dsn = dsn
        self.replicas = replicas
        self.functions = Functions()
        self._config, self._pools, self._observers = config, pools, observers
        self._clock, self._metrics = clock, metrics
        self._context = Context(
            clock=clock,
            spread=random.Random(),  # noqa: S311  jitter, not a secret
            observers=observers,
            metrics=metrics,
            tracing=telemetry.tracing,
            replica_id=replica_id,
            step_grace=config.replica.step_grace,
        )
        self._own_id = replica_id
        self._called = asyncio.Event()
        self._slots_stop = asyncio.Event()
        self._scanners: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []
        self._slots_task: asyncio.Task[None] | None = None
        self._replies_task: asyncio.Task[None] | None = None
        self._channels_task: asyncio.Task[None] | None = None
        self._build_storage()
        self._build_worker()
        self._build_schedules()
        self._build_backend()
        self._build_gauges()

    def _storage_on(self, pool: Pool) -> StorageContext:
        return StorageContext(
            pool=pool,
            functions=self.functions,
            clock=self._clock,
            replica_id=self._own_id,
            statement_timeout=self._config.database.statement_timeout,
            starvation_timeout=self._config.gates.starvation_timeout,
        )

    def _forget(self, namespace: str) -> None:
        self._channels.forget(namespace)
        self._counters.forget(namespace)

    def _count_batch(self, name: str, size: int, wait_seconds: float) -> None:
        self._metrics.batch_items.record(size, (name,))
        self._metrics.batch_wait.record(wait_seconds * MILLISECONDS, (name,))
        self._observers.tell("batch", write=name, size=size)

    def _build_storage(self) -> None:
        config, pools, functions = self._config, self._pools, self.functions
        clock, timeout = self._clock, config.database.statement_timeout
        self._channels = Channels()
        self._counters = Counters()
        self.namespaces = Namespaces(pool=pools.front, functions=functions, on_gone=self._forget)
        self.roster = Roster(
            pool=pools.front, clock=clock, lease_timeout=config.replica.lease_timeout
        )
        watch = Watch(
            pool=pools.front, clock=clock, lease_timeout=config.replica.lease_timeout,
            collecting=config.scanner.interval * (1 + JITTER), statement_timeout=timeout,
        )  # fmt: skip
        self._queues = QueueWatch(
            queues=Queues(pool=pools.scan, clock=clock, statement_timeout=timeout),
            namespaces=self.namespaces,
            clock=clock,
        )
        self.activities = Activities(watch=watch, queues=self._queues)
        front = self._storage_on(pools.front)
        self.processes = Processes(front, namespaces=self.namespaces, watch=watch)
        commit = CommitContext(
            step_count=lambda: self.slots.busy_total,
            jitter=self._context.jitter,
            on_batch=self._count_batch,
        )
        self._admissions = Admissions(front, settings=config.commit, commit=commit)
        self._settlements = Settlements(
            self._storage_on(pools.worker), settings=config.commit, commit=commit,
            step_grace=config.replica.step_grace, metrics=self._metrics,
        )  # fmt: skip
        self.gates = Gates(front)
        self.jobs = Jobs(front)
        self._claims = Claims(front, step_grace=config.replica.step_grace)
        self._results = Results(front)

    def _build_worker(self) -> None:
        config, clock = self._config, self._clock
        observers = self._observers
        self.leases = Leases()
        self.replies = Replies(
            results=self._results,
            listen=lambda: results.listen(self.dsn, self._own_id),
            on_due=self._called.set,
            carried=self.leases.carries,
            clock=clock,
            observers=observers,
            jitter=self._context.jitter,
            metrics=self._metrics,
        )
        self._due_queue = DueQueue(
            clock=clock, horizon=config.scanner.horizon, size_max=_DUE_QUEUE_MAX
        )
        gate_queue = GateQueue(clock=clock, horizon=config.scanner.horizon)
        self._upkeep_queue = UpkeepQueue()
        self._effects = EffectDispatcher(
            replies=self.replies,
            due_queue=self._due_queue,
            gate_queue=gate_queue,
            upkeep_queue=self._upkeep_queue,
            context=self._context,
        )
        worker = self._storage_on(self._pools.worker)
        gates = Gates(worker)
        self._lowered_gates = LoweredGates(
            gates=gates, queue=gate_queue, effects=self._effects, context=self._context
        )
        self._wake_ups = GateWakeUps(
            gates=gates, queue=gate_queue, effects=self._effects, context=self._context
        )
        self._processor = ProcessorClient(self._channels, clock)
        steps = Steps(
            processor=self._processor,
            settlements=self._settlements,
            histories=StepHistories(
                Histories(worker),
                HistoryCache(bytes_max=config.snapshots.bytes_max),
            ),
            namespaces=self.namespaces,
            effects=self._effects,
            job_steps=JobSteps(Jobs(worker)),
            leases=self.leases,
            context=self._context,
            measures=StepMeasures(self._metrics, self._counters),
        )
        self.slots = Slots(lambda task: steps.carry(task, self.slots))
        self.requests = Requests(
            admissions=self._admissions,
            slots=self.slots,
            replies=self.replies,
            results=self._results,
            processes=self.processes,
            namespaces=self.namespaces,
            effects=self._effects,
            context=self._context,
        )
        self._reservations = SlotReservations(slots=self.slots, context=self._context)

    def _build_schedules(self) -> None:
        self._schedules_changed = asyncio.Event()
        self.schedules = Schedules(
            self._storage_on(self._pools.front), on_changed=self._schedules_changed.set
        )
        self.job_control = JobControl(jobs=self.jobs, effects=self._effects)
        self.schedule_runs = self._schedule_runs_on(StoredRuns(self._storage_on(self._pools.front)))

    def _schedule_runs_on(self, runs: StoredRuns) -> ScheduleRuns:
        return ScheduleRuns(
            runs=runs, schedules=self.schedules, requests=self.requests,
            jobs=self.job_control, effects=self._effects, context=self._context,
        )  # fmt: skip

    def _build_backend(self) -> None:
        self.backend = Backend(
            requests=self.requests,
            processes=self.processes,
            namespaces=self.namespaces,
            gates=self.gates,
            gate_capacities=GateCapacities(gates=self.gates, effects=self._effects),
            jobs=self.jobs,
            job_control=self.job_control,
            schedules=self.schedules,
            schedule_runs=self.schedule_runs,
            roster=self.roster,
            activities=self.activities,
        )

    def _build_gauges(self) -> None:
        metrics = self._metrics
        self._pools.observed_by(metrics)
        metrics.steps_in_flight.read_from(
            lambda: [((name,), busy) for name, busy, _ in self.slots.usage()]
        )
        metrics.workers_free.read_from(
            lambda: [((name,), free) for name, _, free in self.slots.usage()]
        )
        metrics.writes_waiting.read_from(
            lambda: [((each.name,), each.count) for each in self._writes_waiting()]
        )
        metrics.writes_waiting_bytes.read_from(
            lambda: [((each.name,), each.size) for each in self._writes_waiting()]
        )
        metrics.largest_step.read_from(
            lambda: [((name,), it.share) for name, it in self._processor.sizes.largest().items()]
        )
        metrics.stream_sessions.read_from(lambda: [(_TO_PROCESSORS, self._channels.stream_count)])

    def _writes_waiting(self) -> list[Waiting]:
        return [*self._admissions.waiting(), *self._settlements.waiting()]

    def load(self) -> ReplicaLoad:
        """Return what is in hand at the moment; from any thread."""
        return ReplicaLoad(
            step_count=self.slots.busy_total,
            caller_count=self.replies.waiting_count,
            loads=self._loads(),
        )

    def look(self) -> None:
        """See which processors are connected again; what comes of it goes with the next load."""
        self._processor.reach.look()

    def _loads(self) -> dict[str, NamespaceLoad]:
        """Return what is known of the namespaces that matter most to those who wait."""
        unreachable = self._processor.reach.unreachable()
        largest_steps = self._processor.sizes.largest()
        usage = [it for it in self.slots.usage() if self.namespaces.is_known(it[0])]
        usage.sort(key=lambda it: (it[0] not in unreachable, -it[1]))
        return {
            name: NamespaceLoad(
                busy_count=busy,
                size=busy + free,
                unreachable_for=unreachable.get(name),
                tally=self._counters.of(name),
                largest_step=largest_steps.get(name),
            )
            for name, busy, free in usage[:LOADS_MAX]
        }

    def start(self, group: asyncio.TaskGroup) -> None:
        """Begin to write, carry, answer and scan."""
        self._writers = [
            group.create_task(self._admissions.run(), name="admissions"),
            group.create_task(self._settlements.run(), name="settlements"),
            group.create_task(self.processes.run(), name="reads"),
        ]
        self._channels_task = group.create_task(self._channels.run(), name="channels")
        self._slots_task = group.create_task(self.slots.run(self._slots_stop), name="slots")
        self._replies_task = group.create_task(self.replies.run(), name="replies")
        scanner, context = self._config.scanner, self._context
        timers = Timers(
            due_queue=self._due_queue, claims=self._claims, namespaces=self.namespaces,
            reservations=self._reservations, pool=self._pools.worker,
            batch_max=scanner.batch_max, context=context,
        )  # fmt: skip
        backlog = Backlog(
            claims=self._claims, namespaces=self.namespaces, reservations=self._reservations,
            pool=self._pools.worker, batch_max=scanner.batch_max, context=context,
        )  # fmt: skip
        due = DueScan(
            claims=self._claims, namespaces=self.namespaces, reservations=self._reservations,
            due_queue=self._due_queue, pool=self._pools.scan, scanner=scanner,
            lease_timeout=self._config.replica.lease_timeout, called=self._called,
            context=context,
        )  # fmt: skip
        scan = self._storage_on(self._pools.scan)
        jobs = JobScan(
            jobs=Jobs(scan), control=JobControl(jobs=Jobs(scan), effects=self._effects),
            upkeep_queue=self._upkeep_queue, scanner=scanner, context=context,
        )  # fmt: skip
        jobs.observed()
        runs = StoredRuns(scan)
        schedules = ScheduleScan(
            runs=runs, schedule_runs=self._schedule_runs_on(runs),
            interval=scanner.interval, lease=self._config.replica.lease_timeout,
            context=context, changed=self._schedules_changed,
        )  # fmt: skip
        self._scanners = [
            group.create_task(schedules.run(), name="schedules"),
            group.create_task(timers.run(), name="timers"),
            group.create_task(self._wake_ups.run(), name="gate wake-ups"),
            group.create_task(self._lowered_gates.run(), name="lowered gates"),
            group.create_task(jobs.run(), name="jobs"),
            group.create_task(backlog.run(), name="backlog"),
            group.create_task(due.run_called(), name="due, called"),
            *self._repeat_scans(group, due, jobs, schedules),
        ]

    def _repeat_scans(
        self,
        group: asyncio.TaskGroup,
        due: DueScan,
        jobs: JobScan,
        schedules: ScheduleScan,
    ) -> list[asyncio.Task[None]]:
        scanner, observers = self._config.scanner, self._observers
        zombies = ZombieScan(
            replicas=self.replicas, admissions=self._admissions, settlements=self._settlements,
            claims=self._claims, namespaces=self.namespaces,
            effects=self._effects, leases=self.leases,
            replica=self._config.replica, scanner=scanner, context=self._context,
        )  # fmt: skip
        retention = RetentionScan(
            retention=Retention(
                dataclasses.replace(self._storage_on(self._pools.scan), clock=SystemClock())
            ),
            results=self._results, replicas=self.replicas, namespaces=self.namespaces,
            scanner=scanner,
        )  # fmt: skip
        gates = GateScan(
            gates=Gates(self._storage_on(self._pools.scan)), namespaces=self.namespaces,
            effects=self._effects, scanner=scanner, context=self._context,
        )  # fmt: skip
        queues = QueueScan(queues=self._queues, namespaces=self.namespaces, metrics=self._metrics)
        scans = {
            "due": (due.scan, scanner.interval),
            "zombies": (zombies.scan, scanner.interval),
            "gates": (gates.scan, scanner.interval),
            "jobs": (jobs.scan, scanner.interval),
            "job_counts": (jobs.count, QUEUES_INTERVAL),
            "queued_runs": (schedules.scan, scanner.interval),
            "old_runs": (schedules.forget, scanner.retention_interval),
            "retention": (retention.scan, scanner.retention_interval),
            "queues": (queues.scan, QUEUES_INTERVAL),
        }
        return [
            group.create_task(
                repeat(
                    scan,
                    name=name,
                    interval=interval,
                    spread=self._context.spread,
                    observers=observers,
                    metrics=self._metrics,
                ),
                name=f"scan {name}",
            )
            for name, (scan, interval) in scans.items()
        ]

    async def leave_server(self) -> None:
        """Connect anew: the server is read-only any more. The listener notices by itself."""
        await self._pools.leave()

    async def stop_scanning(self) -> None:
        """Bring no more work, once `Workers.draining` is set.

        A claim that PostgreSQL has got may lease tasks, of which nobody would know if it were cut
        off: its answer is waited for, as long as a statement may take, and `Steps` hands back what
        it brings. Where no answer comes, the leases are zombies, collected by others.
        """
        for task in self._scanners:
            if not self._claims.sent_by(task):
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.database.statement_timeout.total_seconds()):
                await self._claims.answered()
        for task in self._scanners:
            task.cancel()

    async def finish(self) -> None:
        """Wait for the steps in hand, then write what is decided, and close the channels."""
        await self.slots.idle()
        self._slots_stop.set()
        self._admissions.close()
        self._settlements.close()
        self.processes.close()
        await asyncio.wait(self._writers)
        # What was handed back, or could not continue here, is due now.
        with contextlib.suppress(errors.StorageUnavailableError):
            await self._results.call_others(lease_timeout=self._config.replica.lease_timeout)
        await self._close()

    def cancel(self) -> None:
        """Give up what could not be written in time."""
        for task in (
            *self._scanners, *self._writers,
            self._slots_task, self._replies_task, self._channels_task,
        ):  # fmt: skip
            if task is not None:
                task.cancel()

    async def _close(self) -> None:
        assert self._replies_task is not None, "closed after it was started"
        self._replies_task.cancel()
        await self._channels.close()
