"""Values of the domain and of storage's answers: every default valid, override one field."""

import datetime as dt
from typing import Any

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
from progressor.domain.views.activity import Activity, Queue, QueueCounts
from progressor.domain.views.replica import Facts, ReplicaFacts, ReplicaView
from progressor.storage.processes.claims import Claimed
from progressor.storage.processes.settlements import Due, Entry, Written
from progressor.storage.replicas.replicas import Zombie, ZombieCause
from progressor.storage.rows.effects import Cancelled
from tests.support.clock import START

Fields = dict[str, Any]
Decision = Action | TimerChange | None

NAMESPACE = "orders"
INIT_TASK_ID = 1
STEP_TIMEOUT = dt.timedelta(seconds=30)


def seconds(count: float) -> dt.timedelta:
    """Return a duration."""
    return dt.timedelta(seconds=count)


def make_key(process_id: str = "p1", *, namespace: str = NAMESPACE) -> ProcessKey:
    return process_key(namespace, process_id)


def make_namespace(name: str = NAMESPACE, **fields: Any) -> Namespace:
    """Return a namespace with the defaults of production."""
    defaults: Fields = {"name": name, "processor_targets": ("127.0.0.1:1",)}
    return Namespace(**defaults | fields)


def make_process(**fields: Any) -> Process:
    """Return a running process without events."""
    defaults: Fields = {
        "key": make_key(),
        "status": ProcessStatus.RUNNING,
        "previous_status": ProcessStatus.INIT,
        "detail": None,
        "aux_state": b"",
        "metadata": None,
        "corrupted_by": None,
        "created_at": START,
        "status_changed_at": START,
        "last_event_id": 0,
        "init_task_id": INIT_TASK_ID,
        "result": None,
    }
    return Process(**defaults | fields)


def make_task(**fields: Any) -> RunningTask:
    """Return the first attempt of a call."""
    defaults: Fields = {
        "process": make_process(),
        "task_id": 7,
        "task_type": TaskType.CALL,
        "attempt": 1,
        "token": 70,
        "args": b"args",
        "caller_context": {},
        "trace_context": {},
        "history_range": None,
        "step_timeout": None,
        "scheduled_at": START,
        "started_at": START,
        "first_started_at": START,
    }
    return RunningTask(**defaults | fields)


def make_event(event_id: int = 1, **fields: Any) -> Event:
    """Return a recorded event."""
    defaults: Fields = {
        "event_id": event_id,
        "occurred_at": START,
        "payload": f"event {event_id}".encode(),
        "format_version": 0,
        "metadata": None,
        "task_id": 7,
    }
    return Event(**defaults | fields)


def make_history(last: int, *, first: int = 1, **fields: Any) -> tuple[Event, ...]:
    """Return the events first .. last."""
    return tuple(make_event(event_id, **fields) for event_id in range(first, last + 1))


def make_new_events(count: int) -> tuple[NewEvent, ...]:
    """Return events about to be recorded."""
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


def make_failure(**fields: Any) -> Failed:
    """Return a failure that another attempt may fix."""
    defaults: Fields = {
        "code": 14,
        "reason": "PROCESSOR_UNAVAILABLE",
        "message": "connection refused",
        "retryable": True,
    }
    return Failed(**defaults | fields)


def make_error(**fields: Any) -> TaskError:
    """Return the error of a task that failed."""
    defaults: Fields = {"code": 13, "reason": "BUG", "message": "it broke"}
    return TaskError(**defaults | fields)


def make_result(task_id: int = 7, **fields: Any) -> TaskResult:
    """Return the result of a call that finished."""
    defaults: Fields = {
        "task_id": task_id,
        "task_type": TaskType.CALL,
        "status": TaskStatus.FINISHED,
        "response": b"done",
    }
    return TaskResult(**defaults | fields)


def make_request(task_type: TaskType = TaskType.CALL, **fields: Any) -> Request:
    """Return a call."""
    defaults: Fields = {"key": make_key(), "task_type": task_type, "args": b"args"}
    return Request(**defaults | fields)


def make_entry(task: RunningTask | None = None, **fields: Any) -> Entry:
    """Return the settlement of a task that finished."""
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


def make_written(**fields: Any) -> Written:
    """Return a settlement after which nothing is to be done."""
    defaults: Fields = {
        "settled_at": START,
        "process": make_process(),
        "next": None,
        "due": None,
        "reply_to": (),
        "cancelled": (),
    }
    return Written(**defaults | fields)


def make_cancelled(task_id: int = 8, **fields: Any) -> Cancelled:
    """Return a call that will never run, waited for nowhere else."""
    defaults: Fields = {"task_id": task_id, "task_type": TaskType.CALL, "reply_to": ()}
    return Cancelled(**defaults | fields)


def make_due(task_id: int = 9, **fields: Any) -> Due:
    """Return a timer that is due."""
    defaults: Fields = {"key": make_key(), "task_id": task_id, "due_at": START}
    return Due(**defaults | fields)


def make_claimed(task: RunningTask | None = None) -> Claimed:
    """Return a claimed task that this replica had scheduled."""
    return Claimed(task=make_task() if task is None else task, due_at=START, set_by=1)


def make_zombie(**fields: Any) -> Zombie:
    """Return a lost lease of a silent replica."""
    defaults: Fields = {
        "key": make_key(),
        "task_id": 7,
        "task_type": TaskType.CALL,
        "attempt": 1,
        "token": 70,
        "first_started_at": START,
        "found_at": START + seconds(10),
        "cause": ZombieCause.SILENT,
    }
    return Zombie(**defaults | fields)


def make_replica_view(**fields: Any) -> ReplicaView:
    """Return an idle replica that has just beaten."""
    defaults: Fields = {
        "replica_id": 1,
        "name": "host-1",
        "version": "1.2.3",
        "functions": "progressor_1",
        "started_at": START,
        "heartbeat_at": START,
        "heartbeat_age": seconds(0),
        "lease_timeout": seconds(5),
        "draining": False,
        "step_count": 0,
        "caller_count": 0,
        "clock_offset": seconds(0),
        "lease_count": 0,
    }
    return ReplicaView(**defaults | fields)


def make_replica_facts(replica_id: int = 1, **fields: Any) -> ReplicaFacts:
    """Return a replica that has just beaten, with nothing in hand."""
    defaults: Fields = {
        "replica_id": replica_id,
        "heartbeat_at": START,
        "lease_timeout": seconds(5),
        "draining": False,
        "loads": {},
        "name": f"host-{replica_id}",
        "version": "1.2.3",
        "step_count": 0,
        "caller_count": 0,
    }
    return ReplicaFacts(**defaults | fields)


def make_activity(*replicas: ReplicaFacts, **counts: Any) -> Activity:
    """Return what goes on in these replicas; what waits was just counted, and is nothing."""
    facts = Facts(
        read_at=START, replicas={it.replica_id: it for it in replicas}, collecting=seconds(1)
    )
    return Activity(facts=facts, counts=QueueCounts(**{"age": seconds(0)} | counts))


def make_queue(namespace: str = NAMESPACE, **fields: Any) -> Queue:
    """Return an empty queue."""
    defaults: Fields = {
        "namespace": namespace,
        "due": 0,
        "due_seconds": 0.0,
        "timers": 0,
        "retries": 0,
        "retry_seconds": 0.0,
        "behind": 0,
        "behind_seconds": 0.0,
    }
    return Queue(**defaults | fields)
