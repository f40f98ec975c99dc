"""What a task waits for, from message to value: what a cause does not have is None."""

import datetime as dt
from typing import Literal

from progressor.sdk.codec.wire import instant_from_wire
from progressor.sdk.values.constraints import Order, spent_from_wire
from progressor.sdk.values.gates import holder_from_wire
from progressor.sdk.values.processes import (
    GateWait,
    OrderWait,
    TaskError,
    TaskStatus,
    TaskType,
    Wait,
    WaitCause,
)
from progressor.v1 import types_pb2 as types

_Instant = Literal[
    "until",
    "since",
    "behind_since",
    "processor_unreachable_since",
    "silent_since",
    "collected_at",
    "created_at",
]


def read_wait(message: types.Wait) -> Wait:
    """Return what a task waits for."""
    cause = WaitCause.from_number(message.cause)
    # Also besides another cause, of a task with constraints.
    is_behind = message.HasField("behind_task_id")
    is_crowded = cause is WaitCause.NO_FREE_WORKER
    return Wait(
        task_id=message.task_id,
        type=TaskType.from_number(message.type),
        status=TaskStatus.from_number(message.status),
        cause=cause,
        until=_instant(message, "until"),
        behind_task_id=message.behind_task_id if message.HasField("behind_task_id") else None,
        attempt=message.attempt,
        last_error=read_task_error(message.last_error) if message.HasField("last_error") else None,
        replica_id=message.replica_id if message.HasField("replica_id") else None,
        since=_instant(message, "since"),
        behind_type=TaskType.from_number(message.behind_type) if is_behind else None,
        behind_runs=message.behind_runs if is_behind else None,
        behind_since=_instant(message, "behind_since"),
        attempts_max=message.attempts_max or None,
        busy_count=message.busy_count if is_crowded else None,
        worker_count=message.worker_count if is_crowded else None,
        processor_unreachable_since=_instant(message, "processor_unreachable_since"),
        silent_since=_instant(message, "silent_since"),
        collected_at=_instant(message, "collected_at"),
        explanation=message.explanation,
        order=_read_order(message.order) if message.HasField("order") else None,
        gates=tuple(map(_read_gate, message.gates)),
        spent=spent_from_wire(message.spent) if message.HasField("spent") else None,
        created_at=_instant(message, "created_at"),
    )


def read_task_error(message: types.TaskError) -> TaskError:
    """Return how a task ended, or an attempt."""
    return TaskError(code=message.code, reason=message.reason, message=message.message)


def _read_order(message: types.OrderWait) -> OrderWait:
    return OrderWait(
        order=Order(message.order.key, message.order.version),
        process_id=message.process_id,
        task_id=message.task_id,
        version=message.version,
        status=TaskStatus.from_number(message.status),
    )


def _read_gate(message: types.GateWait) -> GateWait:
    return GateWait(
        gate=message.gate,
        capacity=message.capacity,
        held=message.held,
        holders=tuple(map(holder_from_wire, message.holders)),
        position=message.position or None,
        waiting_count=message.waiting_count,
    )


def _instant(message: types.Wait, name: _Instant) -> dt.datetime | None:
    return instant_from_wire(getattr(message, name)) if message.HasField(name) else None
