"""Processes, events and tasks between values and messages."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.struct_pb2 import Struct
from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded
from progressor.sdk.codec.wire import (
    WireEnum,
    duration,
    instant,
    instant_from_wire,
    metadata,
    object_from_wire,
    object_to_wire,
    payload,
)
from progressor.sdk.values.constraints import CONSTRAINTS
from progressor.sdk.values.processes import (
    Event,
    GateWait,
    HistoryRange,
    JobRole,
    NewEvent,
    NewTimer,
    Process,
    Receipt,
    Reply,
    SimpleRepaired,
    Snapshot,
    TaskError,
    TaskReply,
    TaskTrace,
    TaskType,
    Timer,
    Trace,
    Wait,
    WaitCause,
)
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import Field, Shape

_RANGE = Shape(HistoryRange, types.HistoryRange)
RANGE = Field(name="history_range", shape=_RANGE)
"""The field of a message with a range of history."""

read_range = _RANGE.read


def range_to_wire(history: HistoryRange | None) -> types.HistoryRange | None:
    """Return a range of history; None: the namespace's choice."""
    return None if history is None else _RANGE.message(history)


def metadata_to_wire(value: Mapping[str, Payload] | None) -> Struct | None:
    """Return metadata as a JSON object; None: absent."""
    return None if value is None else object_to_wire(value)


_NEW_EVENT = Shape(
    NewEvent,
    types.NewEvent,
    payload=payload("payload"),
    metadata=metadata(),
    occurred_at=instant("occurred_at"),
)
_SET_TIMER = Shape(
    NewTimer,
    types.SetTimer,
    at=instant("at"),
    after=duration("after"),
    args=payload("args"),
    history=RANGE,
    step_timeout=duration("step_timeout"),
    constraints=CONSTRAINTS,
)


def event_to_wire(event: NewEvent, codec: Codec) -> types.NewEvent:
    """Return an event to be recorded."""
    return _NEW_EVENT.message(event, codec)


def timer_to_wire(timer: NewTimer, codec: Codec) -> types.SetTimer:
    """Return a timer to be set; without `at` and `after` it is due now.

    Raises:
        ValueError: Both `at` and `after` are given, or a datetime has no time zone.
    """
    if timer.at is not None and timer.after is not None:
        message = "at most one of `at` and `after` may be given for a timer"
        raise ValueError(message)
    return _SET_TIMER.message(timer, codec)


def _count(name: str) -> Field:
    """Describe a count that only a task without a free worker has."""

    def read(message: types.Wait, _path: str, _context: object) -> int | None:
        is_crowded = message.cause == WaitCause.NO_FREE_WORKER.number
        return getattr(message, name) if is_crowded else None

    return Field(read=read)


def _behind(name: str, enum: type[WireEnum] | None = None) -> Field:
    """Describe a field of the task before; a task with constraints has it with every cause."""

    def read(message: types.Wait, _path: str, _context: object) -> Any:  # noqa: ANN401  # as the field
        if not message.HasField("behind_task_id"):
            return None
        value = getattr(message, name)
        return enum.from_number(value) if enum else value

    return Field(read=read)


_WAIT = Shape(
    Wait,
    types.Wait,
    behind_type=_behind("behind_type", TaskType),
    behind_runs=_behind("behind_runs"),
    busy_count=_count("busy_count"),
    worker_count=_count("worker_count"),
    gates=Shape(GateWait, types.GateWait),
)
_PROCESS: Shape[Process[Any], types.Process] = Shape(
    Process,
    types.Process,
    state=Field(
        read=lambda message, _path, context: context[0].decode(message.aux_state, context[1])
    ),
    result=Field(read=lambda message, _path, context: context[0].decode(message.result)),
    first_wait=_WAIT,
)
_TASK_TRACE = Shape(
    TaskTrace,
    pb.TaskTrace,
    context="caller_context",
    args=payload("args"),
    response=payload("response"),
    events=Field(
        read=lambda message, _path, codec: tuple(read_event(it, codec) for it in message.events)
    ),
    constraints=CONSTRAINTS,
)

read_wait = _WAIT.read
read_task_error = Shape(TaskError, types.TaskError).read
read_simple_repaired = Shape(SimpleRepaired, pb.SimpleRepairResponse).read
_read_role = Shape(JobRole, pb.JobRole).read
_read_timer = Shape(Timer, types.Timer).read


def read_reply(
    message: pb.StartResponse | pb.CallResponse | pb.RepairResponse,
    codec: Codec,
    kind: TypeForm[Decoded],
    *,
    accept_only: bool,
) -> Reply[Decoded]:
    """Return the answer, its response decoded as a `kind`; with `accept_only` there is none.

    Raises:
        ValueError: The response is not a `kind`.
    """
    data = message.response
    return Reply(
        task_id=message.task_id,
        response=(codec.decode(data, kind) if accept_only else decoded(codec, data, kind)),
        deduplicated=message.deduplicated,
    )


def read_receipt(message: pb.NotifyResponse | pb.PutResponse) -> Receipt:
    """Return the accepted task."""
    return Receipt(task_id=message.task_id, deduplicated=message.deduplicated)


def read_task_reply(
    message: pb.AwaitTaskResponse, codec: Codec, kind: TypeForm[Decoded]
) -> TaskReply[Decoded]:
    """Return how the task ended, its response decoded as a `kind`.

    Raises:
        ValueError: The response is not a `kind`.
    """
    return TaskReply(
        task_id=message.task_id,
        type=TaskType.from_number(message.type),
        response=decoded(codec, message.response, kind),
    )


def read_snapshot(
    message: pb.GetResponse, codec: Codec, kind: TypeForm[Decoded]
) -> Snapshot[Decoded]:
    """Return a process with its history and its waits, its state decoded as a `kind`."""
    return Snapshot(
        process=read_process(message.process, codec, kind),
        history=tuple(read_event(event, codec) for event in message.history),
        timer=_read_timer(message.timer) if message.HasField("timer") else None,
        waits=tuple(read_wait(wait) for wait in message.waits),
        next_after=message.next_after if message.HasField("next_after") else None,
        explanation=message.explanation,
        job_role=_read_role(message.job_role) if message.HasField("job_role") else None,
    )


def read_process(
    message: types.Process, codec: Codec, kind: TypeForm[Decoded] = ANYTHING
) -> Process[Decoded]:
    """Return a process, its state decoded as a `kind`; None: it has no state yet."""
    return _PROCESS.read(message, context=(codec, kind))


def read_event(message: types.Event, codec: Codec) -> Event:
    """Return an event, its payload decoded. By hand, which takes two thirds of a shape's time."""
    return Event(
        event_id=message.event_id,
        occurred_at=instant_from_wire(message.occurred_at),
        payload=codec.decode(message.payload),
        format_version=message.format_version,
        metadata=object_from_wire(message.metadata),
        task_id=message.task_id,
    )


def read_trace(message: pb.TraceResponse, codec: Codec) -> Trace:
    """Return a page of tasks."""
    return Trace(
        tasks=tuple(_TASK_TRACE.read(task, context=codec) for task in message.tasks),
        next_page_token=message.next_page_token,
    )
