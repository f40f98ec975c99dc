"""What stands behind the API, in memory: requests, a process, namespaces and replicas."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any

from progressor import errors
from progressor.api.calls.servicer import Backend, JobControl
from progressor.domain.jobs.job import Job, JobState, Node
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import (
    Leadership,
    Process,
    ProcessKey,
    ProcessStatus,
)
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.processes.task import NodeState, TaskStatus, TaskType
from progressor.domain.views.process import (
    HistoryPage,
    Listed,
    ProcessPage,
    ProcessQuery,
    ProcessView,
    TaskTrace,
    place_of,
)
from progressor.domain.views.wait import Wait
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.replicas.replicas import Replicas
from progressor.telemetry.logs.level import Level
from tests.support.builders import make_event, make_key, make_namespace, make_process, maker
from tests.support.clock import START
from tests.support.runtime.stubs import stub

NOW = START
SECOND = dt.timedelta(seconds=1)
PAYLOAD_MAX = 2 * 1024 * 1024


class MemoryRequests:
    """Answers with the args, with `raises` where set, and never to args of ``hang``."""

    def __init__(self) -> None:
        self.requests: list[Request | Import | ProcessKey] = []
        self.cancelled = asyncio.Event()
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.raises: Exception | None = None

    async def ask(self, request: Request, *, timeout: float | None) -> Reply:
        self.requests.append(request)
        await self._wait(request.args, timeout)
        return Reply(task_id=1, task_type=request.task_type, response=request.args)

    async def accept(self, request: Request) -> Receipt:
        self.requests.append(request)
        await self._wait(b"", None)
        return Receipt(task_id=2, deduplicated=True)

    async def await_task(
        self,
        key: ProcessKey,
        task: int | str,
        *,
        timeout: float | None,
    ) -> Reply:
        self.requests.append(key)
        await self._wait(b"", timeout)
        return Reply(task_id=3, task_type=TaskType.CALL, response=str(task).encode())

    async def recover(self, key: ProcessKey, *, retries: bool) -> int | None:
        self.requests.append(key)
        return 7 if retries else None if key.process_id == "plain" else 4

    async def put(self, process: Import) -> Receipt:
        self.requests.append(process)
        return Receipt(task_id=5)

    async def remove(self, key: ProcessKey) -> None:
        self.requests.append(key)

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        self.requests.append(key)
        if self.raises is not None:
            raise self.raises
        return task if isinstance(task, int) else 6

    async def terminate(self, key: ProcessKey, reason: str) -> None:
        assert reason
        self.requests.append(key)

    async def await_process(
        self, key: ProcessKey, *, until_finished: bool, timeout: float | None
    ) -> bytes:
        self.requests.append(key)
        await self._wait(b"", timeout)
        return b"finished" if until_finished else b"ended"

    async def _wait(self, args: bytes, seconds: float | None) -> None:
        self.asked.set()
        if self.raises is not None:
            raise self.raises
        if args != b"hang":
            return
        try:
            async with asyncio.timeout(seconds):
                await self.release.wait()
        except TimeoutError:
            raise errors.DeadlineExceededError(77) from None
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class MemoryProcesses:
    """One process of 10 events of 1 MiB, in namespace ``orders`` under ``1``."""

    def __init__(self) -> None:
        self.status = ProcessStatus.RUNNING
        self.ranges: list[HistoryRange] = []
        self.init_ends_as = ProcessStatus.RUNNING
        self.first: dict[str, Wait] = {}
        """What the first task of a process waits for, by its id."""

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, bytes_max: int
    ) -> tuple[ProcessView, HistoryPage]:
        """Return the process, which leaves init once it was looked at, and its events that fit."""
        if key != make_key("1"):
            raise errors.ProcessNotFoundError(key.namespace, key.process_id)
        status, self.status = self.status, self.init_ends_as
        view = ProcessView(process=process(key.process_id, status), timer=None, waits=())
        return view, self._history(wanted, view.process.last_event_id, bytes_max)

    def _history(self, wanted: HistoryRange, last_event_id: int, bytes_max: int) -> HistoryPage:
        if wanted.limit == 0 or wanted.after >= last_event_id:
            return HistoryPage(events=(), next_after=None)
        self.ranges.append(wanted)
        count = min(bytes_max // 1024**2, last_event_id - wanted.after)
        ids = range(wanted.after + 1, wanted.after + 1 + count)
        is_cut = wanted.after + count < last_event_id
        return HistoryPage(
            events=tuple(event(event_id) for event_id in ids),
            next_after=wanted.after + count if is_cut else None,
        )

    async def trace(
        self, key: ProcessKey, *, after: int, limit: int, direction: Direction = Direction.FORWARD
    ) -> tuple[TaskTrace, ...]:
        """Return some of five tasks of 1 MB."""
        assert key.process_id == "1"
        if direction is Direction.BACKWARD:
            newest = (after or 6) - 1
            return tuple(trace(task_id) for task_id in range(newest, max(newest - limit, 0), -1))
        return tuple(trace(task_id) for task_id in range(after + 1, min(after + limit, 5) + 1))

    async def page(self, query: ProcessQuery) -> ProcessPage:
        """Return some of five processes, each with what it was given to wait for."""
        found = [process(str(i), ProcessStatus.RUNNING) for i in range(5)]
        if query.before is not None:
            found = [p for p in found if p.key.process_id > query.before[2]]
        page = found[: query.page_size]
        return ProcessPage(
            listed=tuple(
                Listed(process=each, first_wait=self.first.get(each.key.process_id))
                for each in page
            ),
            next_before=place_of(page[-1]) if len(found) > len(page) else None,
        )


class MemoryNamespaces:
    """Namespaces in a dict; one is there from the start."""

    def __init__(self, name: str = "orders") -> None:
        self.stored = {name: namespace(name)}

    async def lookup(self, name: str) -> Namespace:
        return await self.get(name)

    async def create(self, namespace: Namespace) -> Namespace:
        if namespace.name in self.stored:
            raise errors.NamespaceAlreadyExistsError(namespace.name)
        self.stored[namespace.name] = dataclasses.replace(namespace, revision=1, created_at=NOW)
        return self.stored[namespace.name]

    async def update(
        self, name: str, change: Callable[[Namespace], Namespace], *, expected_revision: int
    ) -> Namespace:
        current = await self.get(name)
        if expected_revision not in (0, current.revision):
            raise errors.NamespaceChangedError(name, expected_revision, current.revision)
        self.stored[name] = dataclasses.replace(change(current), revision=current.revision + 1)
        return self.stored[name]

    async def get(self, name: str) -> Namespace:
        if name not in self.stored:
            raise errors.NamespaceNotFoundError(name)
        return self.stored[name]

    async def list(self, *, after: str, limit: int) -> tuple[Namespace, ...]:
        return tuple(self.stored[name] for name in sorted(self.stored) if name > after)[:limit]

    async def delete(self, name: str) -> None:
        await self.get(name)
        if name == "orders":
            raise errors.NamespaceNotEmptyError(name)
        del self.stored[name]


class MemoryLogLevels:
    """Remembers what it was asked; the level was info."""

    def __init__(self) -> None:
        self.asked: list[tuple[Level, dt.timedelta]] = []

    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        self.asked.append((level, lasting))
        return "info"


def namespace(name: str) -> Namespace:
    return make_namespace(
        name, processor_targets=("a:1",), payload_bytes_max=PAYLOAD_MAX, revision=1
    )


def process(process_id: str, status: ProcessStatus) -> Process:
    return make_process(
        key=make_key(process_id),
        status=status,
        previous_status=None,
        aux_state=b"aux",
        last_event_id=10,
        init_task_id=42,
    )


def event(event_id: int) -> Event:
    return make_event(event_id, payload=b"x" * 1000**2, format_version=1, task_id=1)


trace = maker(
    TaskTrace,
    "task_id",
    task_type=TaskType.CALL,
    status=TaskStatus.FINISHED,
    created_at=NOW,
    scheduled_at=None,
    started_at=NOW,
    finished_at=NOW,
    attempt_count=1,
    args=b"x" * 1000**2,
    caller_context={"a": "b"},
    idempotency_key=None,
    response=b"r",
    error=None,
    events=(),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """All that is asked by processes, namespaces, jobs and replicas."""

    requests: MemoryRequests = dataclasses.field(default_factory=MemoryRequests)
    processes: MemoryProcesses = dataclasses.field(default_factory=MemoryProcesses)
    namespaces: MemoryNamespaces = dataclasses.field(default_factory=MemoryNamespaces)
    jobs: Any = dataclasses.field(default_factory=lambda: stub(Jobs))
    job_control: Any = dataclasses.field(default_factory=lambda: stub(JobControl))
    roster: Any = dataclasses.field(default_factory=lambda: stub(Replicas))
    log_levels: MemoryLogLevels = dataclasses.field(default_factory=MemoryLogLevels)

    def backend(self, **others: Any) -> Backend:
        """Return all of it; what is not here, and not among the others, is not there."""
        parts: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Backend))
        parts |= {name: getattr(self, name, None) for name in parts}
        return Backend(**parts | others)


def make_job(job_id: str = "job", **fields: Any) -> Job:
    """Return a job that runs, or that has ended where its state says so."""
    is_over = fields.get("state", JobState.RUNNING) is not JobState.RUNNING
    defaults: dict[str, Any] = {
        "key": make_key(job_id),
        "state": JobState.RUNNING,
        "detail": None,
        "led_by": Leadership.ENGINE,
        "counts": NodeCounts(),
        "created_at": NOW,
        "updated_at": NOW,
        "ended_at": NOW if is_over else None,
        "deadline_at": None,
        "schedule_id": None,
        "revision": 1,
        "retry_count": 0,
    }
    return Job(**defaults | fields)


def make_node(ordinal: int = 1, **fields: Any) -> Node:
    """Return a node that waits."""
    name = fields.get("name", f"n{ordinal}")
    defaults: dict[str, Any] = {
        "ordinal": ordinal,
        "name": name,
        "state": NodeState.WAITING,
        "follower": make_key(f"job/{name}"),
        "predecessors": (),
        "skipped_because_of": None,
        "args": b"",
        "result": b"",
        "error": None,
        "target": None,
        "constraints": None,
        "created_at": NOW,
        "ready_at": None,
        "started_at": None,
        "ended_at": None,
        "attempt": 1,
        "revision": 1,
    }
    return Node(**defaults | fields)
