"""What a task waits for, from domain to protobuf: the flat message that any client can read."""

from collections.abc import Iterable, Mapping
from typing import Any

from progressor.api.gates.codec import HOLDER
from progressor.domain.gates.constraint import Order, Version
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
    Wait,
)
from progressor.v1 import types_pb2
from progressor.wire.nodes import TASK_ERROR
from progressor.wire.shapes import UNSENT, Field, Shape


def _fill_version(message: Any, version: Version, _context: object) -> None:  # noqa: ANN401  # of two
    message.version = str(version)


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

_ORDER = Shape(
    OrderWait,
    types_pb2.OrderWait,
    order=Shape(Order, types_pb2.Order, version=Field(write=_fill_version)),
    version=Field(write=_fill_version),
)
_SHAPES: Mapping[type[Cause], Shape[Any, types_pb2.Wait]] = {
    **{cause: Shape(cause, types_pb2.Wait) for cause in _CAUSE_TO_WIRE},
    Overrun: Shape(Overrun, types_pb2.Wait, expired_at=UNSENT),
    NoReplica: Shape(NoReplica, types_pb2.Wait, draining_count=UNSENT, silent_count=UNSENT),
    BehindTask: Shape(
        BehindTask,
        types_pb2.Wait,
        task_id="behind_task_id",
        task_type="behind_type",
        is_running="behind_runs",
        since="behind_since",
    ),
    BehindVersion: Shape(BehindVersion, types_pb2.Wait, order=_ORDER),
    GatesFull: Shape(
        GatesFull, types_pb2.Wait, gates=Shape(GateWait, types_pb2.GateWait, holders=HOLDER)
    ),
}


def _fill_causes(message: types_pb2.Wait, causes: Iterable[Cause], _context: object) -> None:
    # What is besides has fields of its own, whatever the first cause is.
    for cause in causes:
        _SHAPES[type(cause)].write(cause, message)


_WAIT = Shape(
    Wait,
    types_pb2.Wait,
    task_type="type",
    cause=UNSENT,
    besides=UNSENT,
    causes=Field(write=_fill_causes),
    last_error=TASK_ERROR,
)


def fill_wait(message: types_pb2.Wait, wait: Wait) -> None:
    """Write a wait into an empty message, in fields and in words."""
    _WAIT.write(wait, message)
    message.cause = _CAUSE_TO_WIRE[type(wait.cause)]
    message.explanation = why.explain(wait)
