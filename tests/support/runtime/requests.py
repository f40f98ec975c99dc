"""Requests among collaborators in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, cast

from progressor.domain.processes.admission import Admission, Import, Request, Verdict
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.processes.task import RunningTask
from progressor.runtime.core.observer import Observers
from progressor.runtime.core.slots import Slots
from progressor.runtime.effects.due_queue import DueQueue
from progressor.runtime.effects.replies import Replies
from progressor.runtime.requests.requests import Requests
from progressor.storage.processes.admissions import Admissions
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_key,
    make_namespace,
    make_request,
    make_task,
    seconds,
)
from tests.support.runtime.context import make_context, make_dispatcher
from tests.support.runtime.memory import (
    MemoryAdmissions,
    MemoryListener,
    MemoryNamespaces,
    MemoryProcesses,
    MemoryResults,
)
from tests.support.runtime.virtual_time import LoopClock, settled

KEY = make_key()
WAITING = Admission(verdict=Verdict.ACCEPTED, task_id=7)
LEASED = Admission(verdict=Verdict.ACCEPTED, task_id=7, running=make_task())
IMPORT = Import(key=KEY, status=ProcessStatus.RUNNING)
Value = TypeVar("Value")


class Harness:
    """Requests among collaborators in memory; steps never end."""

    def __init__(self, namespace: Namespace | None = None) -> None:
        self.namespace = namespace or make_namespace()
        self.admissions = MemoryAdmissions()
        self.results = MemoryResults()
        self.processes = MemoryProcesses()
        self.observers = Observers()
        self.metrics = Metrics()
        self.carried: list[int] = []
        self.slots = Slots(self._carry)
        self.due_queue = DueQueue(clock=LoopClock(), horizon=seconds(5), size_max=10)
        self.replies = Replies(
            results=self.results,
            listen=MemoryListener().listen,
            on_due=lambda: None,
            carried=lambda _task_id: True,
            clock=LoopClock(),
            observers=self.observers,
            metrics=self.metrics,
        )
        context = make_context(observers=self.observers, metrics=self.metrics)
        self.requests = Requests(
            admissions=cast("Admissions", self.admissions),
            slots=self.slots,
            replies=self.replies,
            results=self.results,
            processes=self.processes,
            namespaces=MemoryNamespaces(self.namespace),
            effects=make_dispatcher(
                replies=self.replies, due_queue=self.due_queue, context=context
            ),
            context=context,
        )

    async def ask(
        self, request: Request | None = None, *, timeout: float | None = None
    ) -> "asyncio.Future[Reply]":
        """Return the answer to come, once the request has been submitted."""
        return await begun(self.requests.ask(request or make_request(), timeout=timeout))

    async def accept(self) -> "asyncio.Future[Receipt]":
        return await begun(self.requests.accept(make_request()))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        running = asyncio.ensure_future(self.slots.run(asyncio.Event()))
        await settled()
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _carry(self, task: RunningTask) -> None:
        self.carried.append(task.task_id)
        await asyncio.get_running_loop().create_future()


async def begun(call: Coroutine[Any, Any, Value]) -> "asyncio.Future[Value]":
    future = asyncio.ensure_future(call)
    await settled()
    return future
