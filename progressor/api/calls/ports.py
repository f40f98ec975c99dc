"""What this room needs from others, as protocols; ``engine`` provides it."""

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from progressor.domain.gates.gate import Gate, GateView
from progressor.domain.jobs.job import Job, Node
from progressor.domain.jobs.view import JobFilter, JobPage
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.reply import Receipt, Reply
from progressor.domain.schedules.schedule import (
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleRun,
    ScheduleSpec,
    Upcoming,
)
from progressor.domain.views.activity import Activity
from progressor.domain.views.process import (
    HistoryPage,
    ProcessPage,
    ProcessQuery,
    ProcessView,
    TaskTrace,
)
from progressor.domain.views.replica import ReplicaView
from progressor.telemetry.logs.level import Level


class Requests(Protocol):
    """Takes requests in, and hands out their answers.

    All raise `errors.RequestError` and `errors.StorageUnavailableError`. Cancelling a caller never
    cancels a task. A timeout is an argument here, since what it ends in is an answer of its own:
    DeadlineExceededError with the task that continues.
    """

    async def ask(
        self,
        request: Request,
        *,
        timeout: float | None,
    ) -> Reply:
        """Return the answer; `timeout` in seconds, after which the task continues without us."""

    async def accept(self, request: Request) -> Receipt:
        """Return once the task is durable."""

    async def await_task(
        self,
        key: ProcessKey,
        task: int | str,
        *,
        timeout: float | None,
    ) -> Reply:
        """Return the answer of a task known by its id or its idempotency key."""

    async def simple_repair(self, key: ProcessKey) -> int | None:
        """Bring a broken process back; the timer that runs again, None where there is none."""

    async def put(self, process: Import) -> Receipt:
        """Import a process."""

    async def remove(self, key: ProcessKey) -> None:
        """Delete a process with all its rows."""

    async def cancel(self, key: ProcessKey, task: int | str) -> int:
        """Cancel a task that waits, and return its id."""


class Processes(Protocol):
    """Reads processes; all raise `errors.StorageUnavailableError`."""

    async def read(
        self, key: ProcessKey, wanted: HistoryRange, *, bytes_max: int
    ) -> tuple[ProcessView, HistoryPage]:
        """Return a process as it is now, and a range of its history, as much as fits `bytes_max`.

        A first event that is larger comes alone; behind the last event there is nothing.

        Raises:
            ProcessNotFoundError: The process does not exist.
        """

    async def trace(self, key: ProcessKey, *, after: int, limit: int) -> tuple[TaskTrace, ...]:
        """Return at most `limit` tasks with ids above `after`, in the order of their ids.

        Raises:
            ProcessNotFoundError: The process does not exist.
        """

    async def page(self, query: ProcessQuery) -> ProcessPage:
        """Return at most `query.page_size` processes with what each waits for, newest first."""


class Namespaces(Protocol):
    """Keeps the namespaces; all raise `errors.StorageUnavailableError`."""

    async def lookup(self, name: str) -> Namespace:
        """Return a namespace as this replica remembers it; costs nothing once known.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
        """

    async def create(self, namespace: Namespace) -> Namespace:
        """Store a new namespace and return it with what the engine set.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
        """

    async def update(
        self, name: str, change: Callable[[Namespace], Namespace], *, expected_revision: int
    ) -> Namespace:
        """Apply a pure `change` to what is stored, if at `expected_revision` (0: at any).

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
            NamespaceChangedError: It is at another revision.
        """

    async def get(self, name: str) -> Namespace:
        """Return a namespace as it is stored.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
        """

    async def list(self, *, after: str, limit: int) -> tuple[Namespace, ...]:
        """Return at most `limit` namespaces with names above `after`, in their order."""

    async def delete(self, name: str) -> None:
        """Delete a namespace without processes.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
            NamespaceNotEmptyError: It has processes.
        """


class Gates(Protocol):
    """Keeps the gates; all raise `errors.StorageUnavailableError`."""

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Gate, ...]:
        """Return at most `limit` gates with keys above `after`, in their order."""

    async def get(self, namespace: str, gate: str) -> GateView:
        """Return a gate with who holds it and who waits for it.

        Raises:
            GateNotFoundError: The gate does not exist.
        """

    async def delete(self, namespace: str, gate: str) -> None:
        """Delete a gate that has no holders and that no task names.

        Raises:
            GateNotFoundError: The gate does not exist.
            GateInUseError: It is held, or named.
        """


class GateCapacities(Protocol):
    """Sets the capacities of gates; raises `errors.StorageUnavailableError`."""

    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Gate:
        """Set the capacity of a gate, if at `expected_revision` (0: at any, or not there).

        Raises:
            GateNotFoundError: The gate does not exist, and a revision was expected.
            GateChangedError: It is at another revision.
        """


class Jobs(Protocol):
    """Reads jobs; all raise StorageUnavailableError, and all but `list` JobNotFoundError."""

    async def read(self, key: ProcessKey, *, payloads: bool) -> JobPage:
        """Return a job with its nodes; where not `payloads`, without args and results."""

    async def list(
        self,
        namespace: str,
        wanted: JobFilter,
        *,
        after: tuple[dt.datetime, str] | None,
        limit: int,
    ) -> tuple[Job, ...]:
        """Return at most `limit` jobs, the youngest first, behind the creation and id `after`."""

    async def changes(self, key: ProcessKey, after_revision: int) -> tuple[Job, tuple[Node, ...]]:
        """Return a job, and its nodes that have changed after a revision, without payloads."""


class JobControl(Protocol):
    """Ends and retries jobs; both raise JobNotFoundError and `errors.StorageUnavailableError`."""

    async def cancel(self, key: ProcessKey, reason: str) -> Job:
        """End a job.

        Raises:
            JobEndedError: It has ended.
        """

    async def retry(
        self, key: ProcessKey, *, deadline: dt.datetime | None, timeout: dt.timedelta | None
    ) -> tuple[Job, tuple[str, ...]]:
        """Go on with a failed job; return it and the names of the nodes that begin again.

        Raises:
            JobNotFailedError: It has not failed.
        """


class Roster(Protocol):
    """Knows the replicas; raises `errors.StorageUnavailableError`."""

    async def list(self, *, after: int, limit: int) -> tuple[ReplicaView, ...]:
        """Return at most `limit` replicas with ids above `after`, in the order of their ids."""


class Activities(Protocol):
    """Reads the activity of the replicas; raises `errors.StorageUnavailableError`."""

    async def read(self) -> Activity:
        """Return what the replicas do and what waits, as of a moment ago."""


class LogLevels(Protocol):
    """Decides how much the log of this replica says."""

    def set(self, level: Level, lasting: dt.timedelta) -> Level:
        """Say nothing below `level`, for a while or (zero) until changed; returns what it was."""


class CallContext(Protocol):
    """What a servicer asks of gRPC about the call that it serves."""

    def time_remaining(self) -> float | None:
        """Return seconds to the caller's deadline, 0 when past; None: it has none."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the caller's metadata, keys in lower case."""


class Schedules(Protocol):
    """Keeps the schedules; all raise `errors.StorageUnavailableError`.

    Those that name a schedule raise ScheduleNotFoundError, and those that expect a revision, 0 for
    any, ScheduleChangedError.
    """

    async def create(
        self, key: ScheduleKey, spec: ScheduleSpec, *, paused: bool, note: str
    ) -> Schedule:
        """Make a schedule.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
            ScheduleAlreadyExistsError: The id is taken.
        """

    async def get(self, key: ScheduleKey) -> Schedule:
        """Return a schedule."""

    async def list(self, namespace: str, *, after: str, limit: int) -> tuple[Schedule, ...]:
        """Return at most `limit` schedules with ids above `after`, in order, without args."""

    async def update(
        self, key: ScheduleKey, spec: ScheduleSpec, *, expected_revision: int
    ) -> Schedule:
        """Replace the spec of a schedule."""

    async def pause(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        """Have a schedule run no more."""

    async def resume(self, key: ScheduleKey, *, note: str, expected_revision: int) -> Schedule:
        """Have a schedule run again."""

    async def delete(self, key: ScheduleKey, *, expected_revision: int) -> None:
        """Delete a schedule with the record of its runs."""

    async def backfill(
        self, schedule: Schedule, instants: Sequence[Upcoming], policy: OverlapPolicy
    ) -> int:
        """Queue instants of the past, and return how many had started nothing before.

        Raises:
            InvalidRequestError: Some are where the record of runs is gone.
        """


class ScheduleRuns(Protocol):
    """Starts the runs of schedules, and reads those of the past."""

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
    roster: Roster
    activities: Activities
