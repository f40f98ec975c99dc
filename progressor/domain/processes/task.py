"""A task: one unit of work on one process."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping
from typing import Protocol

from progressor.domain import values
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.message import Sender
from progressor.domain.processes.process import Process, ProcessKey


class TaskType(enum.StrEnum):
    """Why a task exists. Members and order equal the SQL enum ``task_type``."""

    INIT = "init"
    CALL = "call"
    NOTIFY = "notify"
    REPAIR = "repair"
    TIMEOUT = "timeout"
    REMOVE = "remove"
    JOIN = "join"
    REPLY = "reply"


TIMER_TYPES = frozenset({TaskType.TIMEOUT, TaskType.REMOVE})
"""Tasks that are due by the clock and yield to every other."""


class TaskStatus(enum.StrEnum):
    """Where a task is. Members and order equal the SQL enum ``task_status``.

    AVAILABLE is reported for a task with constraints that only waits for a worker.
    """

    WAITING = "waiting"
    AVAILABLE = "available"
    RUNNING = "running"
    BLOCKED = "blocked"
    FINISHED = "finished"
    ERROR = "error"
    CANCELLED = "cancelled"


BROKEN_BY = "broken_by"
"""In the metadata of an engine's error: the id of the task that broke the process."""

FINAL_STATUSES = frozenset({TaskStatus.FINISHED, TaskStatus.ERROR, TaskStatus.CANCELLED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """How a task that did not finish has ended.

    ``code`` is a gRPC status code; ``rejected`` marks a processor's rejection, whose ``reason`` and
    ``metadata`` are its own.
    """

    code: int
    reason: str
    message: str
    rejected: bool = False
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


class NodeState(enum.StrEnum):
    """Where a node is. Members and order equal the SQL enum ``node_state``."""

    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutcome:
    """How a node has ended: for its leader's join, or for a successor that wants results."""

    name: str
    state: NodeState
    result: bytes = b""
    error: TaskError | None = None
    skipped_because_of: str | None = None


@values.dataclass(frozen=True, slots=True)
class Claim:
    """How a task that had waited was leased.

    ``due_at`` is by PostgreSQL's clock; when the claim was sent and answered, by the replica's.
    """

    due_at: dt.datetime
    sent_at: dt.datetime
    answered_at: dt.datetime


class LeasedTask(Protocol):
    """A leased task, running or lost. ``attempt`` is from 1; ``broken_by`` broke its process.

    ``tried_for`` counts for the retry policy's ``elapsed_max``: the attempts before this one, which
    began at ``started_at``, and the waits that the policy has set between them.
    """

    @property
    def key(self) -> ProcessKey: ...

    @property
    def task_id(self) -> int: ...

    @property
    def task_type(self) -> TaskType: ...

    @property
    def attempt(self) -> int: ...

    @property
    def broken_by(self) -> int | None: ...

    @property
    def started_at(self) -> dt.datetime: ...

    @property
    def tried_for(self) -> dt.timedelta: ...

    @property
    def trace_context(self) -> Mapping[str, str]: ...


@values.dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A leased task with all that a step needs: what a claim returns.

    ``token`` is the fencing number of the lease. ``history_range`` and ``step_timeout`` are None
    where the namespace decides; ``claim`` where its admission, or the step before it, leased it at
    once. ``spent``, of a task with constraints, are the microseconds in each `GatedState` until
    this attempt began, and running. ``nodes`` are those of the job for a join, and the predecessors
    for the init of a node that wants their results. ``timer_name`` is that of the timer that fires;
    "" also for any other task. ``memos`` are those of earlier attempts,
    read if it ``has_memos``. ``sender`` is None where no step has sent it.
    """

    process: Process
    task_id: int
    task_type: TaskType
    attempt: int
    token: int
    args: bytes
    caller_context: Mapping[str, str]
    trace_context: Mapping[str, str]
    history_range: HistoryRange | None
    step_timeout: dt.timedelta | None
    scheduled_at: dt.datetime
    started_at: dt.datetime
    first_started_at: dt.datetime
    claim: Claim | None = dataclasses.field(default=None, compare=False)
    spent: tuple[int, ...] | None = None
    nodes: tuple[NodeOutcome, ...] = ()
    timer_name: str = ""
    has_memos: bool = False
    memos: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    sender: Sender | None = None
    tried_for: dt.timedelta = dt.timedelta()

    @property
    def key(self) -> ProcessKey:
        return self.process.key

    @property
    def broken_by(self) -> int | None:
        """The task that broke the process before, as a repair finds it."""
        return self.process.corrupted_by


@values.dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """How a task ended: a response, or an error, or neither for a cancelled one without cause.

    ``removed`` stands for a task that is gone together with its process.
    """

    task_id: int
    task_type: TaskType
    status: TaskStatus
    response: bytes = b""
    error: TaskError | None = None
    removed: bool = False
