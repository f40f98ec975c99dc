"""What the servicers share: how a request is read before it is served, and what they call.

What a `Backend` holds raises `errors.RequestError` and `errors.StorageUnavailableError`; cancelling
a caller never cancels a task.
"""

import dataclasses
import datetime as dt
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from google.protobuf.descriptor import ServiceDescriptor

from progressor import errors
from progressor.api.calls.traces import CallContext, trace_context_of
from progressor.domain.gates.gate import Gate
from progressor.domain.jobs.job import Job
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.memo import StepLease
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.schedules.schedule import OverlapPolicy, ScheduleKey, ScheduleRun
from progressor.domain.views.bulk import BulkOperation, BulkRequest
from progressor.storage.access.access import Access
from progressor.storage.access.audit import Audit
from progressor.storage.doctor.doctor import Doctor
from progressor.storage.gates.gates import Gates
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.namespaces.directory import Directory
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.processes import Processes
from progressor.storage.replicas.counts import Counts
from progressor.storage.replicas.queues import Activities
from progressor.storage.replicas.replicas import Replicas
from progressor.storage.schedules.schedules import Schedules
from progressor.storage.steps.failures import Failures
from progressor.telemetry.logs import fields as log_fields
from progressor.telemetry.logs.level import Level

_USELESS_SECONDS = 0.001
_MARGIN_SECONDS = 0.01
_MARGIN_SECONDS_MAX = 0.11
_ROUNDING = 0.01
_MARGIN_SHARE_MAX = 0.1


class Requests(Protocol):
    """Takes requests in, and hands out their answers.

    A timeout, in seconds, ends in DeadlineExceededError with the task that continues.
    """

    async def ask(self, request: Request, *, timeout: float | None) -> Reply: ...

    async def accept(self, request: Request) -> Receipt:
        """Return once the task is durable."""

    async def await_task(self, key: ProcessKey, task: int | str, *, timeout: float | None) -> Reply:
        """Return the answer of a task known by its id or its idempotency key."""

    async def await_process(
        self, key: ProcessKey, *, until_finished: bool, timeout: float | None
    ) -> bytes:
        """Return the result of a process once it has ended."""

    async def recover(self, key: ProcessKey, *, retries: bool) -> int | None:
        """Bring a broken process back; return the task that runs again, None if there is none.

        Only a timer runs again unless it ``retries`` any task.
        """

    async def put(self, process: Import) -> Receipt: ...

    async def remove(self, key: ProcessKey) -> None: ...

    async def cancel(self, key: ProcessKey, task: int | str) -> int: ...

    async def terminate(self, key: ProcessKey, reason: str) -> None: ...


class GateCapacities(Protocol):
    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Gate:
        """Set a capacity, if the gate is at `expected_revision` (0: at any, or none)."""


class JobControl(Protocol):
    async def cancel(self, key: ProcessKey, reason: str) -> Job: ...

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Retry a failed job; return it and the names of the nodes that start again."""


class RunningSteps(Protocol):
    """Serves what a step asks for while it runs, whichever replica runs it."""

    async def remember(self, lease: StepLease, memo_key: str, value: bytes) -> bytes | None: ...

    async def extend(self, lease: StepLease, by: dt.timedelta) -> dt.timedelta: ...

    def deadline_in(self, left: dt.timedelta) -> dt.datetime: ...


class BulkControl(Protocol):
    """Starts and stops bulk operations; ``bulks`` reads them."""

    @property
    def bulks(self) -> Bulks: ...

    async def start(
        self, request: BulkRequest, trace_context: Mapping[str, str]
    ) -> tuple[BulkOperation, bool]:
        """Start an operation; return it, and whether the same request had started it before."""

    async def stop(self, operation_id: str, reason: str) -> BulkOperation: ...


class LogLevels(Protocol):
    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        """Say nothing below `level`, for a while or (zero) until changed; returns what it was."""


class ScheduleRuns(Protocol):
    async def trigger(
        self,
        key: ScheduleKey,
        *,
        policy: OverlapPolicy | None,
        idempotency_key: str | None,
        trace_context: Mapping[str, str],
    ) -> ScheduleRun:
        """Run a schedule now; a key that came before finds its run."""

    async def last(self, key: ScheduleKey, *, limit: int) -> tuple[ScheduleRun, ...]:
        """Return at most `limit` runs, the latest first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """All that the services call, once PostgreSQL is reached."""

    requests: Requests
    processes: Processes
    namespaces: Namespaces
    gates: Gates
    gate_capacities: GateCapacities
    jobs: Jobs
    job_control: JobControl
    schedules: Schedules
    schedule_runs: ScheduleRuns
    roster: Replicas
    activities: Activities
    doctor: Doctor
    running_steps: RunningSteps
    bulk_control: BulkControl
    counts: Counts
    failures: Failures
    access: Access
    audit: Audit
    directory: Directory
    processor_credentials: frozenset[str] = frozenset()
    """The names that namespaces can give here."""


class Servicer:
    """The methods of one service: for each RPC the method of its name, in snake case.

    A method takes a message and a `CallContext`, and returns a message or raises the `errors` that
    become statuses. Cancelling it (the caller hung up) never cancels a task.
    """

    service: ClassVar[ServiceDescriptor]

    def __init__(self, backend: Callable[[], Backend]) -> None:
        self._backend = backend

    def method(self, rpc: str) -> Any:  # noqa: ANN401  # each has a message type of its own
        return getattr(self, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower())

    async def _known(self, names: tuple[str, ...]) -> Mapping[str, Namespace]:
        """Return the namespaces of these names, up to the first that does not exist."""
        found: dict[str, Namespace] = {}
        for name in names:
            try:
                found[name] = await self._backend().namespaces.lookup(name)
            except errors.NamespaceNotFoundError:
                break
        return found


S = TypeVar("S", bound=Servicer)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def reading(
    read: Callable[[Any], Asked],
) -> Callable[
    [Callable[[S, Asked, CallContext], Awaitable[Answer]]],
    Callable[[S, Any, CallContext], Awaitable[Answer]],
]:
    """Decode the message of a method, and check that its namespace exists.

    A passed deadline is reported first, then violations of the request, then an unknown namespace.
    """

    def declare(
        serve: Callable[[S, Asked, CallContext], Awaitable[Answer]],
    ) -> Callable[[S, Any, CallContext], Awaitable[Answer]]:
        @functools.wraps(serve)
        async def method(servicer: S, message: Any, context: CallContext) -> Answer:  # noqa: ANN401  # any message
            seconds_left(context)
            asked = read(message)
            if namespace := getattr(_subject_of(asked), "namespace", ""):
                await servicer._backend().namespaces.lookup(namespace)  # noqa: SLF001  # its own
            return await serve(servicer, asked, context)

        return method

    return declare


def _subject_of(asked: object) -> object:
    """Return what has the namespace of a request: its key, its filter or itself."""
    return getattr(asked, "key", None) or getattr(asked, "filter", asked)


def seconds_left(context: CallContext) -> float | None:
    """Return how long to wait for the result of a call; None: without limit.

    This is a little less than the caller waits, since gRPC cancels the call at its deadline, and
    the error that names the continuing task has to arrive before: 10 ms for the way back, and 1 %
    because gRPC rounds a timeout up to three significant digits.

    Raises:
        DeadlineExceededError: The deadline has passed, or is less than 1 ms away.
    """
    remaining = context.time_remaining()
    if remaining is None:
        return None
    if remaining < _USELESS_SECONDS:
        raise errors.DeadlineExceededError(None)
    margin = min(
        _MARGIN_SECONDS + _ROUNDING * remaining, _MARGIN_SECONDS_MAX, _MARGIN_SHARE_MAX * remaining
    )
    return remaining - margin


def log_change(
    log: logging.Logger, change: str, key: ProcessKey, context: CallContext, **facts: object
) -> None:
    """Log a change that no step makes; settlement logs the others."""
    log.info(change, extra={**log_fields.of_process(key, trace_context_of(context)), **facts})
