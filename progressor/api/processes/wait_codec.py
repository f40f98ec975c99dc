"""What a task waits for, from domain to protobuf: the flat message that any client can read."""

from collections.abc import Mapping
from typing import assert_never

from progressor.api.gates.codec import holder_to_wire
from progressor.domain.views import why
from progressor.domain.views.wait import (
    BehindTask,
    BehindVersion,
    Cause,
    GatesFull,
    GateWait,
    NoFreeWorker,
    NoReplica,
    OrderWait,
    Overrun,
    PresumedDead,
    RetryNotDue,
    RunAtNotDue,
    Running,
    TimerNotDue,
    TimeSpent,
    Wait,
)
from progressor.v1 import types_pb2
from progressor.wire import fields as wire

_CAUSE_TO_WIRE: Mapping[type[Cause], types_pb2.WaitCause.ValueType] = {
    Running: types_pb2.WAIT_CAUSE_RUNNING,
    TimerNotDue: types_pb2.WAIT_CAUSE_TIMER,
    BehindTask: types_pb2.WAIT_CAUSE_BEHIND_TASK,
    NoFreeWorker: types_pb2.WAIT_CAUSE_NO_FREE_WORKER,
    RetryNotDue: types_pb2.WAIT_CAUSE_RETRY,
    NoReplica: types_pb2.WAIT_CAUSE_NO_REPLICA,
    PresumedDead: types_pb2.WAIT_CAUSE_PRESUMED_DEAD,
    Overrun: types_pb2.WAIT_CAUSE_OVERRUN,
    RunAtNotDue: types_pb2.WAIT_CAUSE_RUN_AT,
    BehindVersion: types_pb2.WAIT_CAUSE_ORDER,
    GatesFull: types_pb2.WAIT_CAUSE_GATE,
}
CAUSE_FROM_WIRE: Mapping[int, type[Cause]] = {
    number: cause for cause, number in _CAUSE_TO_WIRE.items()
}


def fill_wait(message: types_pb2.Wait, wait: Wait) -> None:
    """Write a wait into an empty message, in fields and in words."""
    message.task_id = wait.task_id
    message.type = wire.TASK_TYPE_TO_WIRE[wait.task_type]
    message.status = wire.TASK_STATUS_TO_WIRE[wait.status]
    message.attempt = wait.attempt
    wire.fill_timestamp(message.created_at, wait.created_at)
    message.explanation = why.explain(wait)
    if wait.last_error is not None:
        message.last_error.code = wait.last_error.code
        message.last_error.reason = wait.last_error.reason
        message.last_error.message = wait.last_error.message
    if wait.spent is not None:
        fill_spent(message.spent, wait.spent)
    message.cause = _CAUSE_TO_WIRE[type(wait.cause)]
    # What is besides has fields of its own, told of any cause.
    for cause in wait.causes:
        _fill_cause(message, cause)


def fill_spent(message: types_pb2.TimeSpent, spent: TimeSpent) -> None:
    """Write where a task's time went into an empty message."""
    for part, value in (
        (message.time, spent.time),
        (message.order, spent.order),
        (message.process, spent.process),
        (message.gates, spent.gates),
        (message.available, spent.available),
        (message.running, spent.running),
    ):
        part.FromTimedelta(value)


def _fill_cause(message: types_pb2.Wait, cause: Cause) -> None:
    match cause:
        case Running() | PresumedDead() | Overrun():
            _fill_lease(message, cause)
        case TimerNotDue() | RunAtNotDue() | RetryNotDue():
            _fill_instant(message, cause)
        case BehindTask():
            _fill_line(message, cause)
        case BehindVersion() | GatesFull():
            _fill_constraint(message, cause)
        case NoFreeWorker() | NoReplica():
            _fill_due(message, cause)
        case _:
            assert_never(cause)


def _fill_lease(message: types_pb2.Wait, cause: Running | PresumedDead | Overrun) -> None:
    message.replica_id = cause.replica_id
    wire.fill_timestamp(message.since, cause.since)
    if cause.collected_at is not None:
        wire.fill_timestamp(message.collected_at, cause.collected_at)
    match cause:
        case Running():
            _fill_silence(message, cause)
            _fill_reach(message, cause)
        case PresumedDead():
            _fill_silence(message, cause)
        case Overrun():
            pass
        case _:
            assert_never(cause)


def _fill_line(message: types_pb2.Wait, cause: BehindTask) -> None:
    message.behind_task_id = cause.task_id
    message.behind_type = wire.TASK_TYPE_TO_WIRE[cause.task_type]
    message.behind_runs = cause.is_running
    wire.fill_timestamp(message.behind_since, cause.since)
    if cause.until is not None:
        wire.fill_timestamp(message.until, cause.until)


def _fill_instant(message: types_pb2.Wait, cause: TimerNotDue | RunAtNotDue | RetryNotDue) -> None:
    wire.fill_timestamp(message.until, cause.until)
    if isinstance(cause, RetryNotDue):
        message.attempts_max = cause.attempts_max
        _fill_reach(message, cause)


def _fill_constraint(message: types_pb2.Wait, cause: BehindVersion | GatesFull) -> None:
    match cause:
        case BehindVersion(order=order):
            _fill_order(message.order, order)
        case GatesFull(gates=gates):
            for gate in gates:
                _fill_gate(message.gates.add(), gate)
        case _:
            assert_never(cause)


def _fill_order(message: types_pb2.OrderWait, wait: OrderWait) -> None:
    message.order.key = wait.order.key
    message.order.version = str(wait.order.version)
    message.process_id = wait.process_id
    message.task_id = wait.task_id
    message.version = str(wait.version)
    message.status = wire.TASK_STATUS_TO_WIRE[wait.status]


def _fill_gate(message: types_pb2.GateWait, wait: GateWait) -> None:
    message.gate = wait.gate
    message.capacity = wait.capacity
    message.held = wait.held
    message.holders.extend(map(holder_to_wire, wait.holders))
    message.position = wait.position
    message.waiting_count = wait.waiting_count


def _fill_due(message: types_pb2.Wait, cause: NoFreeWorker | NoReplica) -> None:
    wire.fill_timestamp(message.since, cause.since)
    if isinstance(cause, NoFreeWorker):
        message.busy_count = cause.busy_count
        message.worker_count = cause.worker_count
        _fill_reach(message, cause)


def _fill_silence(message: types_pb2.Wait, cause: Running | PresumedDead) -> None:
    if cause.silent_since is not None:
        wire.fill_timestamp(message.silent_since, cause.silent_since)


def _fill_reach(message: types_pb2.Wait, cause: Running | RetryNotDue | NoFreeWorker) -> None:
    since = cause.processor_unreachable_since
    if since is not None:
        wire.fill_timestamp(message.processor_unreachable_since, since)
