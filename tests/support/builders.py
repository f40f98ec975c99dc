"""Values of the domain and of storage's answers: every default valid, override one field."""

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeVar

from progressor.domain.processes.admission import Request
from progressor.domain.processes.event import Event, NewEvent
from progressor.domain.processes.intent import (
    Action,
    Failed,
    Intent,
    KeepTimer,
    SetTimer,
    Succeeded,
    TimerChange,
    UnsetTimer,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.process import Process, ProcessKey, ProcessStatus, process_key
from progressor.domain.processes.settlement import Finish
from progressor.domain.processes.task import (
    RunningTask,
    TaskError,
    TaskResult,
    TaskStatus,
    TaskType,
)
from progressor.domain.views.activity import Activity, NamespaceQueue, QueueCounts
from progressor.domain.views.replica import Facts, ReplicaView
from progressor.storage.postgres.rows.effects import Cancelled
from progressor.storage.replicas.replicas import Zombie, ZombieCause
from progressor.storage.steps.claims import Claimed
from progressor.storage.steps.settlements import Due, Entry, Written
from tests.support.clock import START

T = TypeVar("T")
Fields = dict[str, Any]
Decision = Action | TimerChange | None

NAMESPACE = "orders"
INIT_TASK_ID = 1
STEP_TIMEOUT = dt.timedelta(seconds=30)


def seconds(count: float) -> dt.timedelta:
    return dt.timedelta(seconds=count)


def make_key(process_id: str = "p1", *, namespace: str = NAMESPACE) -> ProcessKey:
    return process_key(namespace, process_id)


def maker(cls: Callable[..., T], *positional: str, **defaults: Any) -> Callable[..., T]:
    """Return a function that makes values, these fields by position, every default valid."""

    def make(*values: Any, **fields: Any) -> T:
        return cls(**defaults | dict(zip(positional, values, strict=False)) | fields)

    return make


make_namespace = maker(Namespace, "name", name=NAMESPACE, processor_targets=("127.0.0.1:1",))

make_process = maker(  # running, without events
    Process,
    key=make_key(),
    status=ProcessStatus.RUNNING,
    previous_status=ProcessStatus.INIT,
    detail=None,
    aux_state=b"",
    metadata=None,
    corrupted_by=None,
    created_at=START,
    status_changed_at=START,
    last_event_id=0,
    init_task_id=INIT_TASK_ID,
    result=None,
)

make_task = maker(  # the first attempt of a call
    RunningTask,
    process=make_process(),
    task_id=7,
    task_type=TaskType.CALL,
    attempt=1,
    token=70,
    args=b"args",
    caller_context={},
    trace_context={},
    history_range=None,
    step_timeout=None,
    scheduled_at=START,
    started_at=START,
    first_started_at=START,
)


def make_event(event_id: int = 1, **fields: Any) -> Event:
    defaults: Fields = {
        "occurred_at": START,
        "payload": f"event {event_id}".encode(),
        "format_version": 0,
        "metadata": None,
        "task_id": 7,
    }
    return Event(event_id=event_id, **defaults | fields)


def make_history(last: int, *, first: int = 1, **fields: Any) -> tuple[Event, ...]:
    return tuple(make_event(event_id, **fields) for event_id in range(first, last + 1))


def make_new_events(count: int) -> tuple[NewEvent, ...]:
    return tuple(NewEvent(payload=f"new {number}".encode()) for number in range(1, count + 1))


def decisions(*decided: Decision) -> Fields:
    """Return the fields of an intent with an action, a change of the timer, or both."""
    changes = (KeepTimer, SetTimer, UnsetTimer)
    return {
        ("timer" if isinstance(each, changes) else "action"): each
        for each in decided
        if each is not None
    }


def make_success(*decided: Decision, **fields: Any) -> Succeeded:
    """Return a success without events; what is not decided stays as it is."""
    defaults: Fields = {"response": b"done"}
    return Succeeded(Intent(**defaults | decisions(*decided) | fields))


make_failure = maker(  # that another attempt may fix
    Failed,
    code=14,
    reason="PROCESSOR_UNAVAILABLE",
    message="connection refused",
    retryable=True,
)
make_error = maker(TaskError, code=13, reason="BUG", message="it broke")
make_result = maker(
    TaskResult,
    "task_id",
    task_id=7,
    task_type=TaskType.CALL,
    status=TaskStatus.FINISHED,
    response=b"done",
)
make_request = maker(Request, "task_type", key=make_key(), task_type=TaskType.CALL, args=b"args")


def make_entry(task: RunningTask | None = None, **fields: Any) -> Entry:
    settled = make_task() if task is None else task
    defaults: Fields = {
        "key": settled.key,
        "task_id": settled.task_id,
        "task_type": settled.task_type,
        "attempt": settled.attempt,
        "token": settled.token,
        "settlement": Finish(make_success().intent),
        "process": settled.process,
        "continues": True,
        "expires_after": STEP_TIMEOUT,
    }
    return Entry(**defaults | fields)


make_written = maker(  # after which nothing is to be done
    Written,
    settled_at=START,
    process=make_process(),
    next=None,
    due=None,
    reply_to=(),
    cancelled=(),
)
make_cancelled = maker(  # a call that will never run, waited for nowhere else
    Cancelled, "task_id", task_id=8, task_type=TaskType.CALL, reply_to=()
)
make_due = maker(Due, "task_id", task_id=9, key=make_key(), due_at=START)


def make_claimed(task: RunningTask | None = None) -> Claimed:
    return Claimed(task=make_task() if task is None else task, due_at=START, set_by=1)


make_zombie = maker(  # the lost lease of a silent replica
    Zombie,
    key=make_key(),
    task_id=7,
    task_type=TaskType.CALL,
    attempt=1,
    token=70,
    started_at=START,
    found_at=START + seconds(10),
    cause=ZombieCause.SILENT,
)


def make_replica_view(replica_id: int = 1, **fields: Any) -> ReplicaView:
    """Return a replica that is idle; at START, it has just beaten."""
    heartbeat_at = fields.get("heartbeat_at", START)
    defaults: Fields = {
        "name": f"host-{replica_id}",
        "version": "1.2.3",
        "functions": "progressor_1",
        "started_at": START,
        "heartbeat_at": heartbeat_at,
        "heartbeat_age": START - heartbeat_at,
        "lease_timeout": seconds(5),
        "draining": False,
        "step_count": 0,
        "caller_count": 0,
        "clock_offset": seconds(0),
        "loads": {},
    }
    return ReplicaView(replica_id=replica_id, **defaults | fields)


def make_activity(*replicas: ReplicaView, **counts: Any) -> Activity:
    """Return what goes on in these replicas; what waits was just counted, and is nothing."""
    facts = Facts(
        read_at=START,
        replicas={replica.replica_id: replica for replica in replicas},
        collecting=seconds(1),
    )
    return Activity(facts=facts, counts=QueueCounts(**{"age": seconds(0)} | counts))


make_queue = maker(  # empty
    NamespaceQueue,
    "namespace",
    namespace=NAMESPACE,
    due_count=0,
    due_age=None,
    timer_count=0,
    retry_count=0,
    retry_age=None,
    behind_count=0,
    behind_age=None,
)
