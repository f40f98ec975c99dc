"""The runtime of one replica over collaborators in memory, in virtual time."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from progressor import errors
from progressor.domain.processes.admission import Admission, Import, Request, Verdict
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.processor.channels import Channels
from progressor.runtime.claims import Backlog, Claimer, DueScan, Timers
from progressor.runtime.core.context import Context
from progressor.runtime.core.leases import Leases
from progressor.runtime.core.rates import Rates
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.runtime.effects.queues import DueQueue, GateQueue, KeyQueue
from progressor.runtime.effects.replies import Replies, Waiter
from progressor.runtime.requests import Requests
from progressor.runtime.step.bulk_steps import BulkSteps
from progressor.runtime.step.histories import HistoryCache, StepHistories
from progressor.runtime.step.job_steps import JobSteps
from progressor.runtime.step.step import Steps
from progressor.runtime.step.turns import Turns
from progressor.runtime.upkeep.retention import RetentionScan, Round, TaskScan
from progressor.runtime.upkeep.zombies import ZombieScan
from progressor.settings.sections import ReplicaSettings, Scanner
from progressor.storage.access.access import Access
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.processes.processes import Processes
from progressor.storage.replicas.retention import (
    DeletedProcesses,
    DeletedTasks,
    Retention,
    TaskTable,
)
from progressor.storage.steps.turns import Turns as StoredTurns
from tests.support.builders import (
    make_claimed,
    make_due,
    make_key,
    make_namespace,
    make_process,
    make_request,
    make_result,
    make_task,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.memory import (
    MemoryAdmissions,
    MemoryClaims,
    MemoryHistories,
    MemoryListener,
    MemoryNamespaces,
    MemoryProcessor,
    MemoryReplicas,
    MemoryResults,
    MemorySettlements,
)
from tests.support.runtime.stubs import stub
from tests.support.runtime.virtual_time import LoopClock, settled

GRACE = seconds(2)
KEY = make_key()
ONE_SLOT = make_namespace(worker_count_max=1)
WAITING = Admission(verdict=Verdict.ACCEPTED, task_id=7)
LEASED = Admission(verdict=Verdict.ACCEPTED, task_id=7, running=make_task())
IMPORT = Import(key=KEY, status=ProcessStatus.RUNNING)
Value = TypeVar("Value")


class _Steady(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def make_context(**fields: Any) -> Context:
    """Return a context without jitter, on the clock of the event loop."""
    defaults: dict[str, Any] = {"clock": LoopClock(), "spread": _Steady()}
    return Context(**defaults | fields)


def make_dispatcher(**parts: Any) -> EffectDispatcher:
    """Return a dispatcher into empty queues; without `replies` it takes no results of tasks."""
    context = parts.pop("context", None) or make_context()
    defaults: dict[str, Any] = {
        "replies": None,
        "due_queue": DueQueue(clock=context.clock, horizon=seconds(60), size_max=1000),
        "gate_queue": GateQueue(clock=context.clock, horizon=seconds(60)),
        "upkeep_queue": KeyQueue(),
        "message_queue": KeyQueue(),
        "channels": Channels(),
        "context": context,
    }
    return EffectDispatcher(**defaults | parts)


def traced(part: Any, tracing: Any) -> Any:
    return dataclasses.replace(part, context=dataclasses.replace(part.context, tracing=tracing))


class Harness:
    """One replica. What starts in its slots lasts until `end`; `run_step` runs one."""

    def __init__(self, *namespaces: Namespace, history_bytes: int = 10_000, **context: Any) -> None:
        self.claims = MemoryClaims()
        self.namespaces = MemoryNamespaces(*namespaces)
        self.admissions = MemoryAdmissions()
        self.settlements = MemorySettlements()
        self.results = MemoryResults()
        self.processes = stub(Processes)
        self.replicas = MemoryReplicas()
        self.retention = stub(
            Retention,
            hold_round=True,
            delete_finished=DeletedProcesses(0, more=False, reached_at=None, overdue=None),
            delete_old_replies=0,
            measure_tasks=TaskTable(1, 0),
            delete_old_tasks=DeletedTasks(0, None),
        )
        self.bulks = stub(Bulks, delete=False)
        self.processor = MemoryProcessor()
        self.histories = MemoryHistories()
        self.listener = MemoryListener()
        self.context = make_context(
            replica=ReplicaSettings(step_grace=GRACE),
            scanner=Scanner(batch_max=10, retention_batch_max=10, zombie_batch_max=3),
            **context,
        )
        self.observers, self.metrics = self.context.observers, self.context.metrics
        self.leases = Leases()
        self.replies = Replies(
            results=cast("Any", self.results),
            listen=self.listener.listen,
            leases=self.leases,
            context=self.context,
        )
        self.effects = make_dispatcher(replies=self.replies, context=self.context)
        self.due_queue = self.effects.due_queue
        self.history_cache = HistoryCache(bytes_max=history_bytes)
        self.begun_ids: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.slots = Slots(self._run_step, paused=self.namespaces.pauses.names)
        self.rates = Rates(self.context, timers_have_room=self.slots.mark_backlog)
        self._build()

    def _build(self) -> None:
        shared: dict[str, Any] = {"effects": self.effects, "context": self.context}
        stored: dict[str, Any] = {"namespaces": self.namespaces, **shared}
        histories = StepHistories(cast("Any", self.histories), self.history_cache)
        self.turns = Turns(
            processor=cast("Any", self.processor), stored=stub(StoredTurns),
            histories=histories, **shared,
        )  # fmt: skip
        self.steps = Steps(
            processor=cast("Any", self.processor),
            settlements=cast("Any", self.settlements),
            histories=histories,
            job_steps=JobSteps(
                stub(Jobs, known_nodes=errors.StorageRefusedError("its page is broken")),
                stub(BulkSteps),
            ),
            turns=self.turns,
            leases=self.leases,
            rates=self.rates,
            **stored,
        )
        self.requests = Requests(
            admissions=cast("Any", self.admissions),
            slots=self.slots,
            replies=self.replies,
            results=cast("Any", self.results),
            processes=self.processes,
            rates=self.rates,
            **stored,
        )
        claimer = Claimer(
            claims=cast("Any", self.claims),
            namespaces=cast("Any", self.namespaces),
            slots=self.slots,
            rates=self.rates,
            context=self.context,
        )
        claiming: dict[str, Any] = {"claimer": claimer, "pool": None, "context": self.context}
        self.timers = Timers(effects=self.effects, **claiming)
        self.backlog = Backlog(**claiming)
        self.due = DueScan(effects=self.effects, **claiming)
        self.zombies = ZombieScan(
            replicas=cast("Any", self.replicas),
            admissions=cast("Any", self.admissions),
            settlements=cast("Any", self.settlements),
            turns=stub(StoredTurns, is_waiting=False),
            claims=cast("Any", self.claims),
            leases=self.leases,
            **stored,
        )
        retaining: dict[str, Any] = {
            "retention": self.retention,
            "upkeep_round": Round(self.retention, self.context),
            "namespaces": self.namespaces,
            "context": self.context,
        }
        self.old_tasks = TaskScan(**retaining)
        self.retaining = RetentionScan(
            **retaining,
            bulks=self.bulks,
            access=stub(Access, write_used=None, delete_ended=None),
            replicas=cast("Any", self.replicas),
        )

    @property
    def points(self) -> dict[str, int]:
        return dict(self.observers.counts)

    async def run_step(self, task: RunningTask | None = None) -> None:
        await self.steps.run(make_task() if task is None else task, self.slots)

    def history_sent(self) -> tuple[int, ...]:
        return tuple(event.event_id for event in self.processor.asked[-1][1])

    def make_due(
        self,
        *task_ids: int,
        namespace: str = "orders",
        task_type: TaskType = TaskType.TIMEOUT,
    ) -> None:
        for task_id in task_ids:
            process = make_process(key=make_key(f"p{task_id}", namespace=namespace))
            task = make_task(task_id=task_id, process=process, task_type=task_type)
            self.claims.add(make_claimed(task))

    def remember(self, *task_ids: int, ahead: float = 0.0, namespace: str = "orders") -> None:
        for task_id in task_ids:
            key = make_key(f"p{task_id}", namespace=namespace)
            due_at = START + seconds(ahead)
            self.due_queue.add(make_due(task_id, key=key, due_at=due_at), as_of=START)

    def fill_the_slot(self) -> None:
        """Take the slot of ONE_SLOT, and mark a backlog."""
        self.slots.reserve(ONE_SLOT)
        self.slots.mark_backlog("orders")

    def end(self, task_id: int) -> None:
        self.ends[task_id].set()

    def end_elsewhere(self, *task_ids: int) -> None:
        """Let tasks end in another replica, without a notification."""
        self.results.ended.update({task_id: make_result(task_id) for task_id in task_ids})

    def expect(self, task_id: int = 7) -> Waiter:
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self.replies.expect(task_id, KEY, waiter)
        return waiter

    async def ask(
        self, request: Request | None = None, *, timeout: float | None = None
    ) -> "asyncio.Future[Reply]":
        return await begun(self.requests.ask(request or make_request(), timeout=timeout))

    async def accept(self) -> "asyncio.Future[Receipt]":
        return await begun(self.requests.accept(make_request()))

    @contextlib.asynccontextmanager
    async def running(self, *scanners: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        async with running(lambda: self.slots.run(asyncio.Event()), *scanners):
            yield

    async def _run_step(self, task: RunningTask) -> None:
        self.begun_ids.append(task.task_id)
        end = self.ends[task.task_id] = asyncio.Event()
        await end.wait()


@contextlib.asynccontextmanager
async def running(*parts: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    tasks = []
    for part in parts:
        tasks.append(asyncio.ensure_future(part()))
        await settled()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def begun(call: Coroutine[Any, Any, Value]) -> "asyncio.Future[Value]":
    future = asyncio.ensure_future(call)
    await settled()
    return future
