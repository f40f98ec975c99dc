"""Waits: the tasks of a process that have not ended, and each one's cause; ``why`` finds them."""

import dataclasses
import datetime as dt

from progressor.domain.task import TaskError, TaskStatus, TaskType


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who carries a task, since when, and when its step will have overrun."""

    replica_id: int
    leased_at: dt.datetime
    expires_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedTask:
    """A task that has not ended, as its rows tell.

    ``attempt_count`` are the attempts begun. ``due_at`` is None where another task is before it,
    and ``lease`` where nobody carries it.
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

    @property
    def attempt(self) -> int:
        """The attempt that runs now, or comes next."""
        return self.attempt_count + (self.lease is None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """It does not wait: a replica carries it.

    ``silent_since`` is told where a heartbeat of that replica is missing. If no other follows, the
    task is collected at ``collected_at``, at the latest.
    """

    replica_id: int
    since: dt.datetime
    silent_since: dt.datetime | None = None
    collected_at: dt.datetime | None = None
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PresumedDead:
    """The replica that carried it has been silent for its lease timeout.

    ``silent_since`` is None where it is not even on the list any more, ``collected_at`` where no
    replica lives that would collect.
    """

    replica_id: int
    since: dt.datetime
    silent_since: dt.datetime | None
    collected_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """The replica that carries it lives, but has not ended the step in time.

    ``collected_at`` is None where no replica lives that would collect.
    """

    replica_id: int
    since: dt.datetime
    expired_at: dt.datetime
    collected_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimerNotDue:
    """It is a timer, until then."""

    until: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryNotDue:
    """Its last attempt failed; the next one is then. ``attempts_max`` counts all attempts."""

    until: dt.datetime
    attempts_max: int
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BehindTask:
    """It is in line behind another task of its process, which runs or waits ``since`` then.

    ``until`` is the instant for which a timer was set.
    """

    task_id: int
    task_type: TaskType
    is_running: bool
    since: dt.datetime
    until: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeWorker:
    """It has been due ``since`` then, and no worker has taken it.

    So many workers of its namespace are busy, of all, in the replicas that serve, as their last
    heartbeats told.
    """

    since: dt.datetime
    busy_count: int
    worker_count: int
    processor_unreachable_since: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoReplica:
    """It has been due ``since`` then, and all replicas drain or are silent."""

    since: dt.datetime
    draining_count: int
    silent_count: int


Cause = (
    Running
    | PresumedDead
    | Overrun
    | TimerNotDue
    | RetryNotDue
    | BehindTask
    | NoFreeWorker
    | NoReplica
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One task that has not ended and why. ``attempt`` is the one that comes next or runs now."""

    task_id: int
    task_type: TaskType
    status: TaskStatus
    attempt: int
    cause: Cause
    last_error: TaskError | None = None
