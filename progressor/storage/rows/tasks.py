"""Rows of the hot path's functions on their way back: columns to the domain's words."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.process import Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType

Row = Sequence[Any]

# psycopg knows nothing of our enums: a binary result has them as bytes, a text one as str.
PROCESS_STATUSES: Mapping[bytes | str | None, ProcessStatus] = {
    spelling: status for status in ProcessStatus for spelling in (status.value, status.encode())
}
TASK_TYPES: Mapping[bytes | str | None, TaskType] = {
    spelling: type_ for type_ in TaskType for spelling in (type_.value, type_.encode())
}
TASK_STATUSES: Mapping[bytes | str | None, TaskStatus] = {
    spelling: status for status in TaskStatus for spelling in (status.value, status.encode())
}

_encode = msgspec.json.Encoder().encode


def json_text(value: Mapping[str, object] | None) -> bytes | None:
    """Return a mapping as JSON; None for None and for an empty one."""
    return _encode(value) if value else None


def history_columns(wanted: HistoryRange | None) -> tuple[int | None, int | None, bool | None]:
    """Return after, limit and backward of a range; three Nones where none was asked for."""
    if wanted is None:
        return None, None, None
    return wanted.after, wanted.limit, wanted.direction is Direction.BACKWARD


def history_range(
    after: int | None, limit: int | None, *, backward: bool | None
) -> HistoryRange | None:
    """Return the range of three columns; a null `backward` is not a range."""
    if backward is None:
        return None
    direction = Direction.BACKWARD if backward else Direction.FORWARD
    return HistoryRange(after=after or 0, limit=limit, direction=direction)


def seconds(value: float | None) -> dt.timedelta | None:
    """Return a duration of seconds."""
    return None if value is None else dt.timedelta(seconds=value)


def process(
    key: ProcessKey, columns: Row, *, result: bytes | None = None, part: Part | None = None
) -> Process:
    """Return the process of the ten columns status .. init_task_id; few readers need its result."""
    return Process(
        key=key,
        status=PROCESS_STATUSES[columns[0]],
        previous_status=PROCESS_STATUSES.get(columns[1]),
        detail=columns[2],
        aux_state=columns[3],
        metadata=columns[4],
        corrupted_by=columns[5],
        created_at=columns[6],
        status_changed_at=columns[7],
        last_event_id=columns[8],
        init_task_id=columns[9],
        result=result,
        part=part,
    )


def task_error(columns: Row) -> TaskError | None:
    """Return the error of the five columns code .. metadata."""
    if columns[0] is None:
        return None
    return TaskError(
        code=columns[0],
        reason=columns[1] or "",
        message=columns[2] or "",
        rejected=bool(columns[3]),
        metadata=columns[4] or {},
    )


def task_result(task_id: int, columns: Row) -> TaskResult:
    """Return the result of the eight columns type, status, response, error code .. metadata."""
    return TaskResult(
        task_id=task_id,
        task_type=TASK_TYPES[columns[0]],
        status=TASK_STATUSES[columns[1]],
        response=columns[2] or b"",
        error=task_error(columns[3:8]),
    )


def event(columns: Row) -> Event:
    """Return the event of the six columns id, time, payload, format version, metadata, task."""
    return Event(*columns)
