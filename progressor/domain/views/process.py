"""What people see of a process: its timer, what its tasks wait for, and the trace of its tasks."""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.roles import JobRole
from progressor.domain.processes.event import Event
from progressor.domain.processes.message import MessageKind, RefusedMessage, Sender
from progressor.domain.processes.process import Process
from progressor.domain.processes.task import TaskError, TaskStatus, TaskType
from progressor.domain.views.filter import EVERYTHING, ProcessFilter
from progressor.domain.views.wait import Cause, TimeSpent, Wait


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A timer of a process: waiting, or blocked while calls are served or an earlier one waits."""

    task_id: int
    task_type: TaskType
    status: TaskStatus
    due_at: dt.datetime
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReply:
    """A reply that has not come yet; the process named is the other one.

    ``task_id`` and ``number`` are those of the message, ``receiver_task_id`` is the task that it
    became; None: it was not delivered yet.
    """

    reply: str
    kind: MessageKind
    namespace: str
    process_id: str
    task_id: int
    number: int
    sent_at: dt.datetime
    receiver_task_id: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """The replies that a process waits for, and those that others wait for from it."""

    awaited: tuple[AwaitedReply, ...] = ()
    requested: tuple[AwaitedReply, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """A process as Get shows it, without its history. ``role`` None: it has no part in jobs.

    ``timer`` is the earliest one, ``later_timers`` are the others.
    """

    process: Process
    timer: Timer | None
    waits: tuple[Wait, ...]
    role: JobRole | None = None
    later_timers: tuple[Timer, ...] = ()
    replies: Replies = Replies()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Events of a range; ``next_after`` where there are more than a message can hold."""

    events: tuple[Event, ...]
    next_after: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrace:
    """The life of one task, with the events that its step recorded (at most 1,000).

    ``replica_id`` had its latest lease; None: none had, or an earlier release ran it.
    """

    task_id: int
    task_type: TaskType
    status: TaskStatus
    created_at: dt.datetime
    scheduled_at: dt.datetime | None
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    attempt_count: int
    args: bytes
    caller_context: Mapping[str, str]
    idempotency_key: str | None
    response: bytes
    error: TaskError | None
    events: tuple[Event, ...] = ()
    constraints: Constraints | None = None
    spent: TimeSpent | None = None
    replica_id: int | None = None
    refused_messages: tuple[RefusedMessage, ...] = ()
    timer_name: str = ""
    sender: Sender | None = None


Place = tuple[dt.datetime, str, str]
"""Where a process stands in a list: when it was created, its namespace, its id; all descending."""


def place_of(process: Process) -> Place:
    return process.created_at, process.key.namespace, process.key.process_id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQuery:
    """Which processes List is asked for, newest first.

    ``page_size`` is 1 .. 1,001: a page, and one more to see whether it is the last. ``before`` is
    the place of the last one seen. ``causes``: only those whose first unfinished task has any of
    these.
    """

    filter: ProcessFilter = EVERYTHING
    page_size: int = 100
    before: Place | None = None
    causes: tuple[type[Cause], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A process of a list, and what its first task waits for that has not ended; None: all have."""

    process: Process
    first_wait: Wait | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPage:
    """A page of a list. ``next_before``: the last place looked at, if others may follow."""

    listed: tuple[Listed, ...]
    next_before: Place | None
