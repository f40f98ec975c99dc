"""The scanners that claim, over storage in memory, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.task import RunningTask, TaskType
from progressor.runtime.core.observer import Observers
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.timers.backlog import Backlog
from progressor.runtime.timers.due import DueScan
from progressor.runtime.timers.reservations import SlotReservations
from progressor.runtime.timers.timers import Timers
from progressor.settings.sections import ReplicaSettings, Scanner
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.postgres.pools import Pool
from progressor.storage.processes.claims import Claims
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_claimed,
    make_due,
    make_key,
    make_namespace,
    make_process,
    make_task,
    seconds,
)
from tests.support.clock import START
from tests.support.runtime.context import make_context
from tests.support.runtime.memory import MemoryClaims, MemoryNamespaces
from tests.support.runtime.virtual_time import LoopClock, settled

POOL = cast("Pool", object())


class Harness:
    """The claiming scanners over one line of due tasks; steps last until they are ended."""

    def __init__(self, *namespaces: Namespace) -> None:
        self.claims = MemoryClaims()
        self.namespaces = MemoryNamespaces(*namespaces)
        self.carried: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.slots = Slots(self._carry)
        self.due_queue = DueQueue(clock=LoopClock(), horizon=seconds(5), size_max=1000)
        self.observers = Observers()
        self.metrics = Metrics()
        context = make_context(observers=self.observers, metrics=self.metrics)
        self.reservations = SlotReservations(slots=self.slots, context=context)
        claims = cast("Claims", self.claims)
        known = cast("Namespaces", self.namespaces)
        self.timers = Timers(
            due_queue=self.due_queue,
            claims=claims,
            namespaces=known,
            reservations=self.reservations,
            pool=POOL,
            batch_max=10,
            context=context,
        )
        self.backlog = Backlog(
            claims=claims,
            namespaces=known,
            reservations=self.reservations,
            pool=POOL,
            batch_max=10,
            context=context,
        )
        self.due = DueScan(
            claims=claims,
            namespaces=known,
            reservations=self.reservations,
            due_queue=self.due_queue,
            pool=POOL,
            scanner=Scanner(batch_max=10),
            lease_timeout=ReplicaSettings().lease_timeout,
            context=context,
        )

    def make_due(
        self,
        *task_ids: int,
        namespace: str = "orders",
        task_type: TaskType = TaskType.TIMEOUT,
    ) -> None:
        """Make tasks due in storage."""
        for task_id in task_ids:
            process = make_process(key=make_key(f"p{task_id}", namespace=namespace))
            task = make_task(task_id=task_id, process=process, task_type=task_type)
            self.claims.add(make_claimed(task))

    def remember(self, *task_ids: int, ahead: float = 0.0, namespace: str = "orders") -> None:
        """Note tasks on the due_queue."""
        for task_id in task_ids:
            key = make_key(f"p{task_id}", namespace=namespace)
            due_at = START + seconds(ahead)
            self.due_queue.add(make_due(task_id, key=key, due_at=due_at), as_of=START)

    def end(self, task_id: int) -> None:
        """Let a step end."""
        self.ends[task_id].set()

    @contextlib.asynccontextmanager
    async def running(self, *scanners: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self.slots.run(asyncio.Event()))]
        await settled()
        tasks += [asyncio.ensure_future(scanner()) for scanner in scanners]
        await settled()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        end = self.ends[task.task_id] = asyncio.Event()
        await end.wait()


ONE_PLACE = make_namespace(worker_count_max=1)
