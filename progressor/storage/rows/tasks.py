"""Rows that the functions of the hot path return, and the domain values made from them.

`Functions.call` compares the fields of a row with the function's file when the engine starts. Where
a function returns several kinds of row, a column that is null in the other kinds has the type that
it has in its own.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.process import Part, Process, ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskError, TaskResult, TaskStatus, TaskType

Row = Sequence[Any]
Enum = bytes | str
"""A value of an enum of the database."""


class ClaimedRow(NamedTuple):
    """A leased task, with its process."""

    slot: int
    namespace: str
    process_id: str
    task_id: int
    task_type: Enum
    attempt: int
    token: int
    args: bytes
    caller_context: dict[str, str] | None
    trace_context: dict[str, str] | None
    history_after: int | None
    history_limit: int | None
    history_backward: bool | None
    step_timeout: float | None
    scheduled_at: dt.datetime
    started_at: dt.datetime
    first_started_at: dt.datetime
    due_at: dt.datetime
    set_by: int
    process_status: Enum
    previous_status: Enum | None
    detail: str | None
    aux_state: bytes
    metadata: dict[str, Any] | None
    corrupted_by: int | None
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    init_task_id: int
    spent_us: list[int] | None
    part: list[Any] | None


class AdmittedStartRow(NamedTuple):
    """The verdict on a start, with a duplicate's task; or, without an item, effects on gates."""

    item: int | None
    verdict: str
    admitted_at: dt.datetime
    task_id: int | None
    token: int | None
    task_type: Enum
    task_status: Enum
    response: bytes | None
    error_code: int | None
    error_reason: str | None
    error_message: str | None
    error_rejected: bool | None
    error_metadata: dict[str, str] | None
    effects: list[Any] | None


class AdmittedRow(NamedTuple):
    """The verdict on a request, with its process if any; or, without an item, effects on gates."""

    item: int | None
    verdict: str
    admitted_at: dt.datetime
    task_id: int | None
    token: int | None
    free: bool | None
    task_type: Enum
    task_status: Enum
    response: bytes | None
    error_code: int | None
    error_reason: str | None
    error_message: str | None
    error_rejected: bool | None
    error_metadata: dict[str, str] | None
    process_status: Enum | None
    previous_status: Enum | None
    detail: str | None
    aux_state: bytes
    metadata: dict[str, Any] | None
    corrupted_by: int | None
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    init_task_id: int
    part: list[Any] | None
    effects: list[Any] | None


class ProcessRow(NamedTuple):
    """A process with its timer, tasks, events and roles in jobs.

    Without ``is_whole`` it is too large for a batch, and is read alone.
    """

    number: int
    is_whole: bool
    process_status: Enum
    previous_status: Enum | None
    detail: str | None
    aux_state: bytes
    metadata: dict[str, Any] | None
    corrupted_by: int | None
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    init_task_id: int
    result: bytes | None
    timer_task_id: int | None
    timer_type: Enum
    timer_status: Enum
    timer_due_at: dt.datetime
    waits: list[Any] | None
    event_count: int
    event_ids: list[int] | None
    occurred_at: list[dt.datetime]
    payloads: list[bytes]
    format_versions: list[int]
    event_metadata: list[Any]
    task_ids: list[int]
    job_role: list[Any] | None


class SettledRow(NamedTuple):
    """A written settlement, with the next task of its worker if any.

    Other rows have one of three columns: ``started``, the follower that the worker of the item runs
    next; ``effects`` on gates; or ``job_effects``. The last two have no item.
    """

    item: int | None
    settled_at: dt.datetime
    process_status: Enum | None
    status_changed_at: dt.datetime
    last_event_id: int
    reply_to: list[int] | None
    cancelled: list[Any] | None
    timer_task_id: int | None
    timer_due_at: dt.datetime
    next_task_id: int | None
    next_task_type: Enum
    next_attempt: int
    next_token: int
    next_args: bytes
    next_caller_context: dict[str, str] | None
    next_trace_context: dict[str, str] | None
    next_history_after: int | None
    next_history_limit: int | None
    next_history_backward: bool | None
    next_step_timeout: float | None
    next_scheduled_at: dt.datetime
    next_first_started_at: dt.datetime
    effects: list[Any] | None
    job_effects: dict[str, Any] | None
    started: list[Any] | None


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


def process_of(
    key: ProcessKey,
    row: ClaimedRow | AdmittedRow | ProcessRow,
    part: Part | None = None,
    *,
    result: bytes | None = None,
) -> Process:
    """Return the process of a row."""
    return Process(
        key=key,
        status=PROCESS_STATUSES[row.process_status],
        previous_status=PROCESS_STATUSES.get(row.previous_status),
        detail=row.detail,
        aux_state=row.aux_state,
        metadata=row.metadata,
        corrupted_by=row.corrupted_by,
        created_at=row.created_at,
        status_changed_at=row.status_changed_at,
        last_event_id=row.last_event_id,
        init_task_id=row.init_task_id,
        result=result,
        part=part,
    )


def task_error(columns: Row) -> TaskError | None:
    """Return the error of the five columns code .. metadata."""
    code, reason, message, rejected, metadata = columns
    if code is None:
        return None
    return TaskError(
        code=code,
        reason=reason or "",
        message=message or "",
        rejected=bool(rejected),
        metadata=metadata or {},
    )


def error_of(row: AdmittedStartRow | AdmittedRow) -> TaskError | None:
    """Return the error of a row."""
    if row.error_code is None:
        return None
    return TaskError(
        code=row.error_code,
        reason=row.error_reason or "",
        message=row.error_message or "",
        rejected=bool(row.error_rejected),
        metadata=row.error_metadata or {},
    )


def result_of(row: AdmittedStartRow | AdmittedRow) -> TaskResult:
    """Return the result of a row's task, which may be unfinished."""
    assert row.task_id is not None, "the row has a task"
    return TaskResult(
        task_id=row.task_id,
        task_type=TASK_TYPES[row.task_type],
        status=TASK_STATUSES[row.task_status],
        response=row.response or b"",
        error=error_of(row),
    )


def event(columns: Row) -> Event:
    """Return the event of the six columns id, time, payload, format version, metadata, task."""
    return Event(*columns)
