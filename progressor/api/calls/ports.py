"""What servicers call in storage and in ``runtime``; ``engine`` provides all of it.

Everything here raises `errors.RequestError` and `errors.StorageUnavailableError`; cancelling a
caller never cancels a task.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Protocol

from progressor.domain.gates.gate import Gate
from progressor.domain.jobs.job import Job
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.schedules.schedule import OverlapPolicy, ScheduleKey, ScheduleRun
from progressor.storage.gates.gates import Gates
from progressor.storage.jobs.jobs import Jobs
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.processes.processes import Processes
from progressor.storage.replicas.queues import Activities
from progressor.storage.replicas.replicas import Replicas
from progressor.storage.schedules.schedules import Schedules
from progressor.telemetry.logs.level import Level


class Requests(Protocol):
    """Takes requests in, and hands out their answers.

    A timeout, in seconds, ends in DeadlineExceededError with the task that continues.
    """

    async def ask(self, request: Request, *, timeout: float | None) -> Reply: ...

    async def accept(self, request: Request) -> Receipt:
        """Return once the task is durable."""

    async def await_task(self, key: ProcessKey, task: int | str, *, timeout: float | None) -> Reply:
        """Return the answer of a task known by its id or its idempotency key."""

    async def simple_repair(self, key: ProcessKey) -> int | None:
        """Bring a broken process back; the timer that runs again, None where there is none."""

    async def put(self, process: Import) -> Receipt: ...

    async def remove(self, key: ProcessKey) -> None: ...

    async def cancel(self, key: ProcessKey, task: int | str) -> int: ...


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


class LogLevels(Protocol):
    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        """Say nothing below `level`, for a while or (zero) until changed; returns what it was."""


class CallContext(Protocol):
    """What a servicer asks of gRPC about the call that it serves."""

    def time_remaining(self) -> float | None:
        """Return seconds to the caller's deadline, 0 when past; None: it has none."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the caller's metadata, keys in lower case."""


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
