"""What a task waits for, from message to value: what a cause does not have is None."""

from typing import Any

from progressor.sdk.codec.wire import WireEnum
from progressor.sdk.values.processes import GateWait, TaskError, TaskType, Wait, WaitCause
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
