"""Waits: the tasks of a process that have not ended, and each one's cause; ``why`` finds them."""

import dataclasses
import datetime as dt
from typing import ClassVar

from progressor.domain.gates.constraint import GatedState, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.policy import Pause
from progressor.domain.processes.task import TIMER_TYPES, TaskError, TaskStatus, TaskType
from progressor.domain.quotas.quotas import Quota


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    replica_id: int
    leased_at: dt.datetime
    expires_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OrderWait:
    """The smallest version, and the oldest task of it, that one of this ``order`` waits for."""

    order: Order
    process_id: str
    task_id: int
    version: Version
    status: TaskStatus


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWait:
    """A full gate and its first holders, the longest first.

    ``position`` is the place among the ``waiting_count`` tasks in its queue, counted up to 1,000;
    0: the task is not in the queue yet, since it waits for something else first.
    """

    gate: str
    capacity: int
    held: int
    holders: tuple[GateHolder, ...]
    position: int
    waiting_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """How long a task with constraints has been in each state; the sum is its age."""

    time: dt.timedelta
    order: dt.timedelta
    process: dt.timedelta
    gates: dt.timedelta
    available: dt.timedelta
    running: dt.timedelta


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The state of a task with constraints, and ``since`` when it is in it.

    ``order`` and ``gates`` are set in every state except AVAILABLE. ``behind_task_id`` is the older
    call of its process that is queued for the same gates.
    """

    state: GatedState
    since: dt.datetime
    spent: TimeSpent
    order: OrderWait | None = None
    gates: tuple[GateWait, ...] = ()
    behind_task_id: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTask:
    """A task that has not ended, as its rows describe it.

    ``attempt_count`` counts the attempts begun. ``due_at`` is None if another task precedes it, or
    if it waits for constraints without an instant. ``held_since`` is set while its process is in
    error, unless it is what brings the process back.
    """

    task_id: int
    task_type: TaskType
    status: TaskStatus
    attempt_count: int
    created_at: dt.datetime
    due_at: dt.datetime | None
    is_due: bool
    lease: Lease | None
    last_error: TaskError | None
    held_since: dt.datetime | None = None
    gated: Gated | None = None
    timer_name: str = ""

    @property
    def is_timer(self) -> bool:
        return self.task_type in TIMER_TYPES

    @property
    def is_constrained(self) -> bool:
        """Whether it waits for its constraints; it is not in the queue of its process then."""
        return self.gated is not None and self.gated.state is not GatedState.AVAILABLE

    @property
    def attempt(self) -> int:
        return self.attempt_count + (self.lease is None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """It does not wait: a replica is running it.

    ``silent_since`` is set where a heartbeat of that replica is missing. If no other follows, the
    task is collected at ``collected_at``, at the latest.
    """

    NAME: ClassVar = "running"

    replica_id: int
    since: dt.datetime
    silent_since: dt.datetime | None = None
    collected_at: dt.datetime | None = None
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PresumedDead:
    """The replica that was running it has been silent for its lease timeout.

    ``silent_since`` is None if its row has been deleted, ``collected_at`` if there is no replica to
    collect the task.
    """

    NAME: ClassVar = "presumed_dead"

    replica_id: int
    since: dt.datetime
    silent_since: dt.datetime | None
    collected_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """Its replica is alive, but its step has exceeded its timeout.

    ``collected_at`` is None where no replica lives that would collect.
    """

    NAME: ClassVar = "overrun"

    replica_id: int
    since: dt.datetime
    expired_at: dt.datetime
    collected_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimerNotDue:
    NAME: ClassVar = "timer"

    until: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunAtNotDue:
    NAME: ClassVar = "run_at"

    until: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryNotDue:
    """Its last attempt failed; the next is scheduled. ``attempts_max`` counts all attempts."""

    NAME: ClassVar = "retry"

    until: dt.datetime
    attempts_max: int
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFailed:
    """Its process has been in error ``since`` then; it waits until the process comes back.

    ``until`` is the instant for which a timer was set.
    """

    NAME: ClassVar = "process_failed"

    since: dt.datetime
    until: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BehindTask:
    """The task is queued behind another task of its process, running or waiting since ``since``.

    ``until`` is the instant for which a timer was set.
    """

    NAME: ClassVar = "behind_task"

    task_id: int
    task_type: TaskType
    is_running: bool
    since: dt.datetime
    until: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BehindVersion:
    NAME: ClassVar = "order"

    order: OrderWait


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatesFull:
    NAME: ClassVar = "gate"

    gates: tuple[GateWait, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeWorker:
    """It has been due ``since`` then, but none of the workers of its namespace has taken it."""

    NAME: ClassVar = "no_free_worker"

    since: dt.datetime
    busy_count: int
    worker_count: int
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorUnreachable:
    """Its processor cannot be reached, or refuses it; the attempts at that do not count.

    It has been due ``since`` then, or is tried again ``until``.
    """

    NAME: ClassVar = "processor_unreachable"

    since: dt.datetime | None = None
    until: dt.datetime | None = None
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoReplica:
    NAME: ClassVar = "no_replica"

    since: dt.datetime
    draining_count: int
    silent_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """Its namespace is paused. It has been due ``since`` then; None: it waits for more."""

    NAME: ClassVar = "paused"

    pause: Pause
    since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsedUp:
    """It is a timer that has been due ``since`` then; no more timers of its namespace may fire."""

    NAME: ClassVar = "quota"

    since: dt.datetime
    namespace: str
    quota: Quota
    limit: int


Cause = (
    Running
    | PresumedDead
    | Overrun
    | TimerNotDue
    | RunAtNotDue
    | RetryNotDue
    | BehindVersion
    | BehindTask
    | ProcessFailed
    | GatesFull
    | NoFreeWorker
    | ProcessorUnreachable
    | NoReplica
    | Paused
    | QuotaUsedUp
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One task that has not ended and why. ``attempt`` is the one that comes next or runs now.

    ``besides`` are the causes that would be left if the first were removed; ``spent`` is where its
    time went, of tasks with constraints alone.
    """

    task_id: int
    task_type: TaskType
    status: TaskStatus
    attempt: int
    created_at: dt.datetime
    cause: Cause
    besides: tuple[Cause, ...] = ()
    spent: TimeSpent | None = None
    last_error: TaskError | None = None
    timer_name: str = ""

    @property
    def causes(self) -> tuple[Cause, ...]:
        return (self.cause, *self.besides)
