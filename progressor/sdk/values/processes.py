"""What requests take and answers bring: processes, events, tasks, as frozen values.

Instants are aware datetimes in UTC. Payloads (state, response, event ...) are decoded.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Generic, Self

from progressor.sdk.codec.codecs import Payload
from progressor.sdk.codec.kinds import Asked
from progressor.sdk.codec.wire import Seconds, WireEnum
from progressor.sdk.values.constraints import Constraints, GateHolder, Order, TimeSpent


class ProcessStatus(WireEnum):
    """Where a process is in its life. UNSPECIFIED: none, or one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    INIT = "init"
    RUNNING = "running"
    ERROR = "error"
    FINISHED = "finished"


class TaskType(WireEnum):
    """Why a task exists. UNSPECIFIED: none, or one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    INIT = "init"
    CALL = "call"
    NOTIFY = "notify"
    REPAIR = "repair"
    TIMEOUT = "timeout"
    REMOVE = "remove"
    JOIN = "join"


class TaskStatus(WireEnum):
    """Where a task is. UNSPECIFIED: one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    WAITING = "waiting"
    RUNNING = "running"
    BLOCKED = "blocked"
    FINISHED = "finished"
    ERROR = "error"
    CANCELLED = "cancelled"
    AVAILABLE = "available"


class WaitCause(WireEnum):
    """Why a task does not run, or that it does. UNSPECIFIED: one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    RUNNING = "running"
    TIMER = "timer"
    BEHIND_TASK = "behind_task"
    NO_FREE_WORKER = "no_free_worker"
    RETRY = "retry"
    NO_REPLICA = "no_replica"
    PRESUMED_DEAD = "presumed_dead"
    OVERRUN = "overrun"
    RUN_AT = "run_at"
    ORDER = "order"
    GATE = "gate"


class Direction(WireEnum):
    """Which way a range of history runs."""

    UNSPECIFIED = "unspecified"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRange:
    """A piece of a history; by default all of it, oldest first.

    ``after`` leaves out everything up to and including that event id, in the direction; 0: from
    the first, or, backward, from the last. ``limit`` is at most 100,000; None: no limit, 0: no
    events at all.
    """

    after: int = 0
    limit: int | None = None
    direction: Direction = Direction.FORWARD

    @classmethod
    def last(cls, count: int) -> Self:
        """Return the range of the last `count` events, newest first."""
        return cls(limit=count, direction=Direction.BACKWARD)


NO_HISTORY = HistoryRange(limit=0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskError:
    """How a failed or rejected task ended; ``code`` is a gRPC status code."""

    code: int
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrderWait:
    """The task of a smaller version that another one waits for.

    ``order`` is that of the task that waits. Of several, the smallest version is given, then the
    oldest.
    """

    order: Order
    process_id: str
    task_id: int
    version: str
    status: TaskStatus


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWait:
    """A gate that is full, and the first 10 who hold it, the longest first.

    ``position`` is the task's among the ``waiting_count`` (at most 1,000 counted) who wait for this
    gate, from 1, as things stand; None: it does not stand in line yet.
    """

    gate: str
    capacity: int
    held: int
    holders: tuple[GateHolder, ...]
    position: int | None
    waiting_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One task that has not ended, and what it waits for.

    ``explanation`` says in words all that the others say in fields, each of which is None where
    the cause has none: ``until`` of a timer, a retry and ``run_at``; ``since`` when it runs, or is
    due and waits for a worker, of whom ``busy_count`` of ``worker_count`` are busy; the task that
    it is behind, whether that runs, and since when it runs or waits; of how many attempts; the
    replica, the last heartbeat of one that is late, and by when the task is collected from it.

    Of a task with constraints what it waits for besides its cause is given too: a smaller version
    of its ``order``, those of its ``gates`` that are full; and how its time was ``spent`` until
    now.
    """

    task_id: int
    type: TaskType
    status: TaskStatus
    cause: WaitCause
    until: dt.datetime | None
    behind_task_id: int | None
    attempt: int
    last_error: TaskError | None
    replica_id: int | None
    since: dt.datetime | None
    behind_type: TaskType | None
    behind_runs: bool | None
    behind_since: dt.datetime | None
    attempts_max: int | None
    busy_count: int | None
    worker_count: int | None
    processor_unreachable_since: dt.datetime | None
    silent_since: dt.datetime | None
    collected_at: dt.datetime | None
    explanation: str
    order: OrderWait | None = None
    gates: tuple[GateWait, ...] = ()
    spent: TimeSpent | None = None
    created_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Process(Generic[Asked]):
    """A process without its history; its type parameter is that of its ``state``.

    Where List made it, ``state`` and ``result`` are None, and ``first_wait`` is what its first
    task waits for that has not ended; None: all have, or it was not made by List.
    """

    namespace: str
    process_id: str
    status: ProcessStatus
    detail: str
    state: Asked | None
    metadata: Mapping[str, Payload]
    corrupted_by: int | None
    previous_status: ProcessStatus
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    result: Payload
    first_wait: Wait | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One recorded fact; ``event_id`` counts from 1 without gaps within its process."""

    event_id: int
    occurred_at: dt.datetime
    payload: Payload
    format_version: int
    metadata: Mapping[str, Payload]
    task_id: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to import with Put. ``occurred_at`` None: now."""

    payload: Payload
    format_version: int = 0
    metadata: Mapping[str, Payload] | None = None
    occurred_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewTimer:
    """A timer to be set; see `Step.set_timer` for each field. Put takes none with constraints."""

    after: Seconds | None = None
    at: dt.datetime | None = None
    remove: bool = False
    args: Payload = None
    history: HistoryRange | None = None
    step_timeout: Seconds | None = None
    constraints: Constraints | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """The timer of a process: a timeout or remove task, waiting or blocked by calls."""

    task_id: int
    type: TaskType
    status: TaskStatus
    due_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LedJob:
    """The job that a process leads: how many nodes it has, and how many have not ended."""

    unfinished_count: int
    node_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FollowedJob:
    """The job in which a process is a node, by its leader's namespace and id."""

    namespace: str
    job_id: str
    node: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobRole:
    """A process's part in jobs: it leads one, follows in one, or both."""

    led: LedJob | None
    followed: FollowedJob | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Generic[Asked]):
    """A process with its history, its timer and what its unfinished tasks wait for.

    ``explanation`` says what the process waits for that none of its tasks tells: a repair, or
    nothing. ``next_after`` is set where the range has more events than a message holds: ask again
    with it. ``job_role``: its part in jobs; None: it has none.
    """

    process: Process[Asked]
    history: tuple[Event, ...]
    timer: Timer | None
    waits: tuple[Wait, ...]
    next_after: int | None
    explanation: str
    job_role: JobRole | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Asked]):
    """The processor's answer; ``response`` is of the type that was asked for.

    With `accept_only` it is None, whatever that type. ``deduplicated``: an earlier request with the
    same idempotency key did the work.
    """

    task_id: int
    response: Asked
    deduplicated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The task that is durably accepted, or that stands for an import."""

    task_id: int
    deduplicated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimpleRepaired:
    """The timer that runs again; None where the process is simply running."""

    task_id: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer(Generic[Asked]):
    """How an awaited task ended."""

    task_id: int
    type: TaskType
    response: Asked


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrace:
    """The life of one task, and the events that its step recorded (at most 1,000).

    ``constraints`` as they were asked for, None: none; ``spent``: once such a task has ended, where
    its life went. ``replica_id``: the replica that runs it, or ran it last; None: none has.
    """

    task_id: int
    type: TaskType
    status: TaskStatus
    created_at: dt.datetime
    scheduled_at: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    attempt_count: int
    args: Payload
    context: Mapping[str, str]
    idempotency_key: str
    response: Payload
    error: TaskError | None
    events: tuple[Event, ...]
    constraints: Constraints | None = None
    spent: TimeSpent | None = None
    replica_id: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One page of the tasks of a process, by ascending id. ``next_page_token`` "": the last."""

    tasks: tuple[TaskTrace, ...]
    next_page_token: str
