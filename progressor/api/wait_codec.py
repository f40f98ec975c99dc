"""What a task waits for, from domain to protobuf: the flat message that any client can read."""

from typing import assert_never

from progressor import wire
from progressor.domain import why
from progressor.domain.wait import (
    BehindTask,
    Cause,
    NoFreeWorker,
    NoReplica,
    Overrun,
    PresumedDead,
    RetryNotDue,
    Running,
    TimerNotDue,
    Wait,
)
from progressor.v1 import types_pb2


def fill_wait(message: types_pb2.Wait, wait: Wait) -> None:
    """Write a wait into an empty message, in fields and in words."""
    message.task_id = wait.task_id
    message.type = wire.TASK_TYPE_TO_WIRE[wait.task_type]
    message.status = wire.TASK_STATUS_TO_WIRE[wait.status]
    message.attempt = wait.attempt
    message.explanation = why.explain(wait)
    if wait.last_error is not None:
        message.last_error.code = wait.last_error.code
        message.last_error.reason = wait.last_error.reason
        message.last_error.message = wait.last_error.message
    _fill_cause(message, wait.cause)


def _fill_cause(message: types_pb2.Wait, cause: Cause) -> None:
    match cause:
        case Running() | PresumedDead() | Overrun():
            _fill_lease(message, cause)
        case TimerNotDue(until=until):
            message.cause = types_pb2.WAIT_CAUSE_TIMER
            wire.fill_timestamp(message.until, until)
        case RetryNotDue():
            message.cause = types_pb2.WAIT_CAUSE_RETRY
            wire.fill_timestamp(message.until, cause.until)
            message.attempts_max = cause.attempts_max
            _fill_reach(message, cause)
        case BehindTask():
            _fill_line(message, cause)
        case NoFreeWorker():
            message.cause = types_pb2.WAIT_CAUSE_NO_FREE_WORKER
            wire.fill_timestamp(message.since, cause.since)
            message.busy_count = cause.busy_count
            message.worker_count = cause.worker_count
            _fill_reach(message, cause)
        case NoReplica(since=since):
            message.cause = types_pb2.WAIT_CAUSE_NO_REPLICA
            wire.fill_timestamp(message.since, since)
        case _:
            assert_never(cause)


def _fill_lease(message: types_pb2.Wait, cause: Running | PresumedDead | Overrun) -> None:
    message.replica_id = cause.replica_id
    wire.fill_timestamp(message.since, cause.since)
    if cause.collected_at is not None:
        wire.fill_timestamp(message.collected_at, cause.collected_at)
    match cause:
        case Running():
            message.cause = types_pb2.WAIT_CAUSE_RUNNING
            _fill_silence(message, cause)
            _fill_reach(message, cause)
        case PresumedDead():
            message.cause = types_pb2.WAIT_CAUSE_PRESUMED_DEAD
            _fill_silence(message, cause)
        case Overrun():
            message.cause = types_pb2.WAIT_CAUSE_OVERRUN
        case _:
            assert_never(cause)


def _fill_line(message: types_pb2.Wait, cause: BehindTask) -> None:
    message.cause = types_pb2.WAIT_CAUSE_BEHIND_TASK
    message.behind_task_id = cause.task_id
    message.behind_type = wire.TASK_TYPE_TO_WIRE[cause.task_type]
    message.behind_runs = cause.is_running
    wire.fill_timestamp(message.behind_since, cause.since)
    if cause.until is not None:
        wire.fill_timestamp(message.until, cause.until)


def _fill_silence(message: types_pb2.Wait, cause: Running | PresumedDead) -> None:
    if cause.silent_since is not None:
        wire.fill_timestamp(message.silent_since, cause.silent_since)


def _fill_reach(message: types_pb2.Wait, cause: Running | RetryNotDue | NoFreeWorker) -> None:
    since = cause.processor_unreachable_since
    if since is not None:
        wire.fill_timestamp(message.processor_unreachable_since, since)
