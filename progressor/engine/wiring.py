"""The parts of an engine, put together: what there is once connected to PostgreSQL.

One half of the composition root; the other is ``engine``, which says when things start and end.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping

from progressor import errors
from progressor.api.calls.servicer import Backend
from progressor.api.calls.status import packed_status
from progressor.clock import SystemClock
from progressor.domain.views.activity import QUEUES_MAX
from progressor.domain.views.replica import LOADS_MAX, NamespaceLoad, ReplicaLoad
from progressor.processor.channels import Channels
from progressor.processor.client import ProcessorClient
from progressor.processor.credentials import Credentials
from progressor.processor.step_calls import StepCalls
from progressor.runtime.bulks import BulkControl
from progressor.runtime.claims import Backlog, Claimer, DueScan, Timers
from progressor.runtime.core.context import JITTER, Context
from progressor.runtime.core.leases import Ending, Leases
from progressor.runtime.core.measures import MILLISECONDS
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.queues import DueQueue, GateQueue, KeyQueue
from progressor.runtime.effects.replies import Replies
from progressor.runtime.gates import GateCapacities, GateScan, GateWakeUps, LoweredGates
from progressor.runtime.jobs import JobControl, JobScan
from progressor.runtime.messages import MessageDelivery
from progressor.runtime.requests import Requests
from progressor.runtime.schedules import ScheduleRuns, ScheduleScan
from progressor.runtime.step.bulk_steps import BulkSteps
from progressor.runtime.step.histories import HistoryCache, StepHistories
from progressor.runtime.step.job_steps import JobSteps
from progressor.runtime.step.running_steps import RunningSteps
from progressor.runtime.step.step import Steps
from progressor.runtime.step.turns import Turns as StepTurns
from progressor.runtime.upkeep.access import AccessWatch
from progressor.runtime.upkeep.audit import AuditScan
from progressor.runtime.upkeep.counts import CountScan
from progressor.runtime.upkeep.pauses import PauseWatch
from progressor.runtime.upkeep.retention import (
    RetentionScan,
    Round,
    TaskScan,
    report_overdue,
)
from progressor.runtime.upkeep.scans import (
    QUEUES_INTERVAL,
    FailureScan,
    QueueScan,
    forget_namespaces,
)
from progressor.runtime.upkeep.zombies import ZombieScan
from progressor.settings.config import Config
from progressor.storage.access.access import Access
from progressor.storage.access.audit import Audit, AuditNotes
from progressor.storage.commit.group_commit import CommitContext, Waiting
from progressor.storage.doctor.doctor import Doctor
from progressor.storage.gates.gates import Gates
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.namespaces.directory import Directory
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.pools import Pool, Pools
from progressor.storage.processes import results
from progressor.storage.processes.admissions import Admissions
from progressor.storage.processes.histories import Histories
from progressor.storage.processes.processes import Processes
from progressor.storage.processes.results import Results
from progressor.storage.replicas.counts import Counts
from progressor.storage.replicas.heartbeats import Heard
from progressor.storage.replicas.lineage import Lineage
from progressor.storage.replicas.queues import Activities, Queues, QueueWatch
from progressor.storage.replicas.replicas import Replicas
from progressor.storage.replicas.retention import Retention
from progressor.storage.replicas.status import Watch
from progressor.storage.schedules.runs import StoredRuns
from progressor.storage.schedules.schedules import Schedules
from progressor.storage.steps.claims import Claims
from progressor.storage.steps.failures import Failures
from progressor.storage.steps.messages import Messages
from progressor.storage.steps.settlements import Settlements
from progressor.storage.steps.step_writes import StepWrites
from progressor.storage.steps.turns import Turns
from progressor.telemetry.instruments import Labels
from progressor.wire.tls import Reloaded

_DUE_QUEUE_MAX = 100_000
_TO_PROCESSORS: Labels = ("processor",)


class Wiring:
    def __init__(  # noqa: PLR0913  all that it connects
        self,
        config: Config,
        dsn: str,
        pools: Pools,
        context: Context,
        functions: Functions,
        credentials: Mapping[str, Reloaded[Credentials]],
        *,
        lineage: Lineage,
        audit_notes: AuditNotes,
    ) -> None:
        self.functions, self.lineage = functions, lineage
        self._config, self._dsn, self._pools, self.context = config, dsn, pools, context
        self._credentials, self._audit_notes = credentials, audit_notes
        self._front, self._worker, self._scan = map(
            self._storage_on, (pools.front, pools.worker, pools.scan)
        )
        self._slots_stop = asyncio.Event()
        self._scanners: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._build_storage()
        self._build_effects()
        self._build_worker()
        self._build_backend()
        self._build_gauges()

    def _storage_on(self, pool: Pool) -> StorageContext:
        return StorageContext(
            pool=pool,
            functions=self.functions,
            clock=self.context.clock,
            replica_id=self.context.replica_id,
            statement_timeout=self._config.database.statement_timeout,
            starvation_timeout=self._config.gates.starvation_timeout,
        )

    def _count_batch(self, name: str, size: int, wait_seconds: float) -> None:
        self.context.metrics.batch_items.record(size, (name,))
        self.context.metrics.batch_wait.record(wait_seconds * MILLISECONDS, (name,))
        self.context.observers.tell("batch", write=name, size=size)

    def _build_storage(self) -> None:
        config, lease_timeout = self._config, self._config.replica.lease_timeout
        self.namespaces = Namespaces(self._front)
        self.replicas = Replicas(self._scan, lease_timeout=lease_timeout)
        self._status = Watch(
            self._front,
            lease_timeout=lease_timeout,
            collecting=config.scanner.interval * (1 + JITTER),
        )
        self._queues = QueueWatch(
            queues=Queues(self._scan), namespaces=self.namespaces, clock=self.context.clock
        )
        self._processes = Processes(self._front, namespaces=self.namespaces, watch=self._status)
        commit = CommitContext(
            step_count=lambda: self.slots.busy_total,
            jitter=self.context.jitter,
            on_batch=self._count_batch,
        )
        self._admissions = Admissions(self._front, settings=config.commit, commit=commit)
        self._settlements = Settlements(
            self._worker, settings=config.commit, commit=commit,
            step_grace=config.replica.step_grace, metrics=self.context.metrics,
        )  # fmt: skip
        self._turns = Turns(
            self._worker, settings=config.commit, commit=commit, metrics=self.context.metrics
        )
        self._step_writes = StepWrites(
            self._worker, settings=config.commit, commit=commit,
            step_grace=config.replica.step_grace,
        )  # fmt: skip
        self._claims = Claims(self._front, step_grace=config.replica.step_grace)
        self._results = Results(self._front)
        self._schedules = Schedules(self._front)
        self.access = Access(self._front)
        self._audit = Audit(self._scan, self._audit_notes)

    def _build_effects(self) -> None:
        context = self.context
        self.leases = Leases()
        self.replies = Replies(
            results=self._results,
            listen=lambda: results.listen(self._dsn, context.replica_id),
            leases=self.leases,
            context=context,
            pauses_changed=self.namespaces.pauses.changed,
        )
        self._running_steps = RunningSteps(self._step_writes, self.namespaces, context.clock)
        self._channels = Channels(
            StepCalls(running_steps=self._running_steps, status=packed_status), self._credentials
        )
        horizon = context.scanner.horizon
        self._effects = EffectDispatcher(
            replies=self.replies,
            due_queue=DueQueue(clock=context.clock, horizon=horizon, size_max=_DUE_QUEUE_MAX),
            gate_queue=GateQueue(clock=context.clock, horizon=horizon),
            upkeep_queue=KeyQueue(),
            message_queue=KeyQueue(),
            channels=self._channels,
            context=context,
        )

    def _build_worker(self) -> None:
        self._processor = ProcessorClient(
            self._channels,
            self.context.clock,
            epoch=self.context.epoch,
            paused=self.namespaces.pauses.names,
        )
        self._rates = Rates(self.context, timers_have_room=self._look_for_timers)
        histories = StepHistories(
            Histories(self._worker), HistoryCache(bytes_max=self._config.snapshots.bytes_max)
        )
        steps = Steps(
            processor=self._processor,
            settlements=self._settlements,
            histories=histories,
            namespaces=self.namespaces,
            effects=self._effects,
            job_steps=JobSteps(
                Jobs(self._worker),
                BulkSteps(bulks=Bulks(self._worker), effects=self._effects, context=self.context),
            ),
            turns=StepTurns(
                processor=self._processor,
                stored=self._turns,
                histories=histories,
                effects=self._effects,
                context=self.context,
            ),
            leases=self.leases,
            rates=self._rates,
            context=self.context,
        )
        reach = self._processor.reach
        self.slots = Slots(
            lambda task: steps.run(task, self.slots),
            breakers=reach.breakers,
            room_made=reach.room_made,
            paused=self.namespaces.pauses.names,
        )
        self._requests = Requests(
            admissions=self._admissions, slots=self.slots, replies=self.replies,
            results=self._results, processes=self._processes, namespaces=self.namespaces,
            effects=self._effects, rates=self._rates, context=self.context,
        )  # fmt: skip
        self._job_control = JobControl(jobs=Jobs(self._front), effects=self._effects)
        self._messages = MessageDelivery(
            messages=Messages(self._worker), effects=self._effects, context=self.context
        )

    def _look_for_timers(self, namespace: str) -> None:
        self.slots.mark_backlog(namespace)

    def _schedule_runs_on(self, runs: StoredRuns) -> ScheduleRuns:
        return ScheduleRuns(
            runs=runs, schedules=self._schedules, requests=self._requests,
            jobs=self._job_control, effects=self._effects, context=self.context,
        )  # fmt: skip

    def _build_backend(self) -> None:
        gates = Gates(self._front)
        self.backend = Backend(
            requests=self._requests,
            processes=self._processes,
            namespaces=self.namespaces,
            gates=gates,
            gate_capacities=GateCapacities(gates=gates, effects=self._effects),
            jobs=self._job_control.jobs,
            job_control=self._job_control,
            schedules=self._schedules,
            schedule_runs=self._schedule_runs_on(StoredRuns(self._front)),
            roster=Replicas(self._front, lease_timeout=self._config.replica.lease_timeout),
            activities=Activities(watch=self._status, queues=self._queues),
            doctor=Doctor(self._config, self._dsn, self.context.clock),
            running_steps=self._running_steps,
            bulk_control=BulkControl(
                bulks=Bulks(self._front), namespaces=self.namespaces, effects=self._effects
            ),
            counts=Counts(self._front, self._dsn),
            failures=Failures(self._front),
            processor_credentials=frozenset(self._credentials),
            access=self.access,
            audit=Audit(self._front, self._audit_notes),
            directory=Directory(self._front),
        )

    def _build_gauges(self) -> None:
        metrics = self.context.metrics
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
        metrics.namespaces_paused.read_from(self._paused)
        metrics.quota_used.read_from(self._rates.used)
        metrics.stream_sessions.read_from(lambda: [(_TO_PROCESSORS, self._channels.stream_count)])

    def _paused(self) -> list[tuple[Labels, float]]:
        """Return for each namespace whether it is paused; if there are too many, those first."""
        paused = dict(self.namespaces.pauses.names)
        others = [it.name for it in self.namespaces.known() if it.name not in paused]
        names = [*paused, *others][:QUEUES_MAX]
        return [((name,), float(name in paused)) for name in names]

    def _writes_waiting(self) -> list[Waiting]:
        writes = (self._admissions, self._settlements, self._turns, self._step_writes)
        return [waiting for each in writes for waiting in each.waiting()]

    def load(self) -> ReplicaLoad:
        """Return what the replica is working on; thread-safe."""
        unreachable = self._processor.reach.unreachable()
        largest_steps = self._processor.sizes.largest()
        # If there are too many namespaces, those where callers are most likely to wait.
        usage = [it for it in self.slots.usage() if self.namespaces.is_known(it[0])]
        usage.sort(key=lambda it: (it[0] not in unreachable, -it[1]))
        return ReplicaLoad(
            step_count=self.slots.busy_total,
            caller_count=self.replies.waiting_count,
            loads={
                name: NamespaceLoad(
                    busy_count=busy,
                    size=busy + free,
                    unreachable_for=unreachable.get(name),
                    tally=self.context.measures.tally_of(name),
                    largest_step=largest_steps.get(name),
                )
                for name, busy, free in usage[:LOADS_MAX]
            },
            rates=self._rates.told,
        )

    def hear(self, heard: Heard) -> None:
        """Take in what a heartbeat has read."""
        self.namespaces.pauses.heartbeat(heard.paused)
        self.access.heartbeat(heard.access_revision)
        self._rates.share(heard.rates, self.namespaces.find)

    def let_go(self) -> None:
        """Leave to the others what they take over from a replica without heartbeats."""
        self.leases.let_go(Ending.ABANDONED)
        self._rates.let_go(self.namespaces.find)

    def look(self) -> None:
        """See which processors are connected again; the next load reports it."""
        self._processor.reach.look()

    def start(self, group: asyncio.TaskGroup) -> None:
        self._writers = [
            group.create_task(self._admissions.run(), name="admissions"),
            group.create_task(self._settlements.run(), name="settlements"),
            group.create_task(self._turns.run(), name="turns"),
            group.create_task(self._step_writes.run(), name="step writes"),
            group.create_task(self._processes.run(), name="reads"),
        ]
        access = AccessWatch(access=self.access, context=self.context)
        self._others = [
            group.create_task(self.replies.run(), name="replies"),
            group.create_task(self._channels.run(), name="channels"),
            group.create_task(self.slots.run(self._slots_stop), name="slots"),
            group.create_task(access.run(), name="access"),
        ]
        effects, context, worker = self._effects, self.context, self._pools.worker
        claimer = Claimer(
            claims=self._claims,
            namespaces=self.namespaces,
            slots=self.slots,
            rates=self._rates,
            context=context,
        )
        timers = Timers(claimer=claimer, pool=worker, effects=effects, context=context)
        backlog = Backlog(claimer=claimer, pool=worker, context=context)
        due = DueScan(claimer=claimer, pool=self._pools.scan, effects=effects, context=context)
        gates = Gates(self._worker)
        wake_ups = GateWakeUps(gates=gates, effects=effects, context=context)
        lowered_gates = LoweredGates(gates=gates, effects=effects, context=context)
        jobs = JobScan(control=JobControl(jobs=Jobs(self._scan), effects=effects), context=context)
        jobs.observed()
        schedules = ScheduleScan(
            schedule_runs=self._schedule_runs_on(StoredRuns(self._scan)), context=context
        )
        pauses = PauseWatch(
            namespaces=self.namespaces, slots=self.slots, reach=self._processor.reach,
            schedules_changed=self._schedules.changed, context=context,
        )  # fmt: skip
        self._scanners = [
            group.create_task(pauses.run(), name="pauses"),
            group.create_task(pauses.continue_resumed(), name="resumed namespaces"),
            group.create_task(schedules.run(), name="schedules"),
            group.create_task(timers.run(), name="timers"),
            group.create_task(wake_ups.run(), name="gate wake-ups"),
            group.create_task(lowered_gates.run(), name="lowered gates"),
            group.create_task(jobs.run(), name="jobs"),
            group.create_task(backlog.run(), name="backlog"),
            group.create_task(self._messages.run(), name="messages"),
            group.create_task(due.run_called(), name="due, called"),
            group.create_task(
                forget_namespaces(self.namespaces, effects), name="forget namespaces"
            ),
            *self._repeat_scans(group, due, jobs, schedules),
        ]

    def _repeat_scans(
        self, group: asyncio.TaskGroup, due: DueScan, jobs: JobScan, schedules: ScheduleScan
    ) -> list[asyncio.Task[None]]:
        effects, context, scanner = self._effects, self.context, self.context.scanner
        zombies = ZombieScan(
            replicas=self.replicas, admissions=self._admissions, settlements=self._settlements,
            turns=self._turns, claims=self._claims, namespaces=self.namespaces, effects=effects,
            leases=self.leases, context=context,
        )  # fmt: skip
        stored = Retention(dataclasses.replace(self._scan, clock=SystemClock()))
        upkeep_round = Round(stored, context)
        retention = RetentionScan(
            retention=stored, upkeep_round=upkeep_round, bulks=Bulks(self._scan),
            replicas=self.replicas, namespaces=self.namespaces, access=self.access,
            context=context,
        )  # fmt: skip
        old_tasks = TaskScan(
            retention=stored, upkeep_round=upkeep_round, namespaces=self.namespaces,
            context=context,
        )  # fmt: skip
        report_overdue(context.metrics, retention, old_tasks)
        gates = GateScan(
            gates=Gates(self._scan), namespaces=self.namespaces, effects=effects, context=context
        )
        queues = QueueScan(
            queues=self._queues, namespaces=self.namespaces, metrics=context.metrics,
            watch=self._status,
        )  # fmt: skip
        counts = CountScan(counts=Counts(self._scan, self._dsn), context=context)
        failures = FailureScan(failures=Failures(self._scan), namespaces=self.namespaces)
        audit = AuditScan(
            audit=self._audit, retention=self._config.audit.retention, context=context
        )
        scans = {
            "due": (due.scan, scanner.interval),
            "zombies": (zombies.scan, scanner.interval),
            "gates": (gates.scan, scanner.interval),
            "jobs": (jobs.scan, scanner.interval),
            "messages": (self._messages.scan, scanner.interval),
            "job_counts": (jobs.count, QUEUES_INTERVAL),
            "queued_runs": (schedules.scan, scanner.interval),
            "old_runs": (schedules.forget, scanner.retention_interval),
            "retention": (retention.scan, scanner.retention_interval),
            "old_tasks": (old_tasks.scan, scanner.retention_interval),
            "queues": (queues.scan, QUEUES_INTERVAL),
            "counts": (counts.scan, scanner.interval),
            "failures": (failures.scan, QUEUES_INTERVAL),
            "audit": (audit.scan, self._config.replica.heartbeat_interval),
            "old_audit": (audit.forget, scanner.retention_interval),
        }
        return [
            group.create_task(
                context.repeat(scan, name=name, interval=interval), name=f"scan {name}"
            )
            for name, (scan, interval) in scans.items()
        ]

    async def leave_server(self) -> None:
        """Connect anew: the server is now read-only. The listener notices by itself."""
        await self._pools.leave()

    async def stop_scanning(self) -> None:
        """Bring no more work, once `Slots.draining` is set.

        The answer of a claim that PostgreSQL has received is awaited: the tasks that it leases
        would be lost, and zombies, if it were cut off. `Steps` hands back what it brings.
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
        await self.slots.idle()
        self._slots_stop.set()
        self._admissions.close()
        self._settlements.close()
        self._turns.close()
        self._step_writes.close()
        self._processes.close()
        await asyncio.wait(self._writers)
        await self._messages.flush()
        with contextlib.suppress(errors.StorageUnavailableError):
            await self._audit.write_notes()
        # What was handed back, or could not continue here, is due now.
        with contextlib.suppress(errors.StorageUnavailableError):
            await self._results.call_others(lease_timeout=self._config.replica.lease_timeout)
        replies, *_, access = self._others
        replies.cancel()
        access.cancel()
        await self._channels.close()

    async def close(self) -> None:
        """Close what is still open if something broke; repeating it does nothing."""
        await self._channels.close()

    async def abandon(self) -> None:
        """End everything at once; nothing is settled, nor handed back."""
        self.slots.suspended = self.leases.lost = True
        self.let_go()
        self.cancel()
        await asyncio.wait([*self._scanners, *self._writers, *self._others])
        await self._channels.close()

    def cancel(self) -> None:
        for task in (*self._scanners, *self._writers, *self._others):
            task.cancel()
