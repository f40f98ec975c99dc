"""Messages become values: pure functions, one per message."""

from typing import Any

from typing_extensions import TypeForm

from progressor.sdk.codec.codecs import Codec, decoded
from progressor.sdk.codec.kinds import ANYTHING, Asked
from progressor.sdk.codec.wire import WireEnum, instant_from_wire, object_from_wire
from progressor.sdk.values.constraints import constraints_from_wire
from progressor.sdk.values.processes import (
    Accepted,
    Answer,
    Direction,
    Event,
    GateWait,
    HistoryRange,
    JobRole,
    Process,
    ProcessStatus,
    Snapshot,
    TaskAnswer,
    TaskError,
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


def _count(name: str) -> Field:
    """Return a count that only a task without a free worker has."""

    def read(message: types.Wait, _path: str, _context: object) -> int | None:
        is_crowded = message.cause == WaitCause.NO_FREE_WORKER.number
        return getattr(message, name) if is_crowded else None

    return Field(read=read)


def _behind(name: str, enum: type[WireEnum] | None = None) -> Field:
    """Return a field of the task before; also beside another cause, of a task with constraints."""

    def read(message: types.Wait, _path: str, _context: object) -> Any:  # noqa: ANN401  # as the field
        if not message.HasField("behind_task_id"):
            return None
        value = getattr(message, name)
        return enum.from_number(value) if enum else value

    return Field(read=read)


_GATE_WAIT = Shape(GateWait, types.GateWait)
_WAIT = Shape(
    Wait,
    types.Wait,
    behind_type=_behind("behind_type", TaskType),
    behind_runs=_behind("behind_runs"),
    busy_count=_count("busy_count"),
    worker_count=_count("worker_count"),
    gates=_GATE_WAIT,
)

read_wait = _WAIT.read
read_task_error = Shape(TaskError, types.TaskError).read


def read_answer(
    message: pb.StartResponse | pb.CallResponse | pb.RepairResponse,
    codec: Codec,
    kind: TypeForm[Asked],
    *,
    accept_only: bool,
) -> Answer[Asked]:
    """Return the answer, its response decoded as a `kind`; with `accept_only` there is none.

    Raises:
        ValueError: The response is no `kind`.
    """
    data = message.response
    return Answer(
        task_id=message.task_id,
        response=(codec.decode(data, kind) if accept_only else decoded(codec, data, kind)),
        deduplicated=message.deduplicated,
    )


def read_accepted(message: pb.NotifyResponse | pb.PutResponse) -> Accepted:
    """Return the accepted task."""
    return Accepted(task_id=message.task_id, deduplicated=message.deduplicated)


def read_task_answer(
    message: pb.AwaitTaskResponse, codec: Codec, kind: TypeForm[Asked]
) -> TaskAnswer[Asked]:
    """Return how the task ended, its response decoded as a `kind`.

    Raises:
        ValueError: The response is no `kind`.
    """
    return TaskAnswer(
        task_id=message.task_id,
        type=TaskType.from_number(message.type),
        response=decoded(codec, message.response, kind),
    )


def read_snapshot(message: pb.GetResponse, codec: Codec, kind: TypeForm[Asked]) -> Snapshot[Asked]:
    """Return the process with all that Get says of it, its state decoded as a `kind`."""
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
    message: types.Process, codec: Codec, kind: TypeForm[Asked] = ANYTHING
) -> Process[Asked]:
    """Return a process, its state decoded as a `kind`, None if it has none yet."""
    return Process(
        namespace=message.namespace,
        process_id=message.process_id,
        status=ProcessStatus.from_number(message.status),
        detail=message.detail,
        state=codec.decode(message.aux_state, kind),
        metadata=object_from_wire(message.metadata),
        corrupted_by=message.corrupted_by if message.HasField("corrupted_by") else None,
        previous_status=ProcessStatus.from_number(message.previous_status),
        created_at=instant_from_wire(message.created_at),
        status_changed_at=instant_from_wire(message.status_changed_at),
        last_event_id=message.last_event_id,
        result=codec.decode(message.result),
        first_wait=read_wait(message.first_wait) if message.HasField("first_wait") else None,
    )


def read_event(message: types.Event, codec: Codec) -> Event:
    """Return an event, its payload decoded."""
    return Event(
        event_id=message.event_id,
        occurred_at=instant_from_wire(message.occurred_at),
        payload=codec.decode(message.payload),
        format_version=message.format_version,
        metadata=object_from_wire(message.metadata),
        task_id=message.task_id,
    )


def read_range(message: types.HistoryRange) -> HistoryRange:
    """Return a range of history."""
    direction = message.direction or types.DIRECTION_FORWARD
    return HistoryRange(
        after=message.after,
        limit=message.limit if message.HasField("limit") else None,
        direction=Direction.from_number(direction),
    )


def read_trace(message: pb.TraceResponse, codec: Codec) -> Trace:
    """Return a page of tasks."""
    return Trace(
        tasks=tuple(_read_task_trace(task, codec) for task in message.tasks),
        next_page_token=message.next_page_token,
    )


def _read_task_trace(message: pb.TaskTrace, codec: Codec) -> TaskTrace:
    return _TASK_TRACE.read(message, context=codec)


_TASK_TRACE = Shape(
    TaskTrace,
    pb.TaskTrace,
    context="caller_context",
    args=Field(read=lambda message, _path, codec: codec.decode(message.args)),
    response=Field(read=lambda message, _path, codec: codec.decode(message.response)),
    events=Field(
        read=lambda message, _path, codec: tuple(read_event(it, codec) for it in message.events)
    ),
    constraints=Field(
        read=lambda message, _path, _codec: (
            constraints_from_wire(message.constraints) if message.HasField("constraints") else None
        )
    ),
)
_read_role = Shape(JobRole, pb.JobRole).read
_read_timer = Shape(Timer, types.Timer).read
