"""Views: processes as people see them, each from one row of priv/functions/read_processes.sql."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from progressor.domain.event import Direction, Event, HistoryRange
from progressor.domain.process import ProcessKey
from progressor.domain.task import TIMER_TYPES, TaskStatus
from progressor.domain.view import HistoryPage, ProcessView, Timer, Wait, WaitCause
from progressor.storage import rows

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_EVENTS = HistoryPage(events=(), next_after=None)


def number(row: rows.Row) -> int:
    """Return which item of the batch a row answers, from 0."""
    item: int = row[0] - 1
    return item


def is_whole(row: rows.Row) -> bool:
    """Return whether the process itself is in the row; it is too large for a batch otherwise."""
    whole: bool = row[1]
    return whole


def view(key: ProcessKey, row: rows.Row) -> ProcessView:
    """Return the process of a whole row, its timer, and what its unfinished tasks wait for."""
    return ProcessView(
        process=rows.process(key, row[2:12], result=row[12]),
        timer=None if row[13] is None else _timer(row[13:17]),
        waits=() if row[17] is None else _waits(row[17]),
    )


def page(row: rows.Row, wanted: HistoryRange) -> HistoryPage | None:
    """Return the events of a whole row in the order wanted; None: they are too many for a batch."""
    event_count, event_ids = row[18:20]
    if event_count == 0:
        return _NO_EVENTS
    if event_ids is None or len(event_ids) < event_count:
        return None
    events = list(map(Event, *row[19:25]))
    if wanted.direction is Direction.BACKWARD:
        events.reverse()
    return HistoryPage(events=tuple(events), next_after=None)


def _timer(columns: rows.Row) -> Timer:
    return Timer(
        task_id=columns[0],
        task_type=rows.TASK_TYPES[columns[1]],
        status=rows.TASK_STATUSES[columns[2]],
        due_at=columns[3],
    )


def _waits(found: Sequence[Sequence[Any]]) -> tuple[Wait, ...]:
    """Name what each task waits for: the task before it, or its time, or a worker."""
    waits: list[Wait] = []
    for columns in found:
        task_type, status = rows.TASK_TYPES[columns[1]], rows.TASK_STATUSES[columns[2]]
        due_at, attempt, is_due = _instant(columns[3]), columns[4], columns[11]
        until = behind = None
        if status is TaskStatus.RUNNING:
            cause = WaitCause.RUNNING
        elif waits:
            # Calls run in order, and before the timer: whatever stands before it, it is behind.
            cause, behind = WaitCause.BEHIND_TASK, waits[-1].task_id
        elif is_due:
            cause = WaitCause.NO_FREE_WORKER
        else:
            cause, until = (WaitCause.RETRY if attempt else WaitCause.TIMER), due_at
        if task_type in TIMER_TYPES and cause is WaitCause.BEHIND_TASK:
            until = due_at
        waits.append(
            Wait(
                task_id=columns[0],
                task_type=task_type,
                status=status,
                cause=cause,
                attempt=attempt if status is TaskStatus.RUNNING else attempt + 1,
                until=until,
                behind_task_id=behind,
                last_error=rows.task_error(columns[6:11]),
                replica_id=columns[5],
            )
        )
    return tuple(waits)


def _instant(microseconds: int | None) -> dt.datetime | None:
    return None if microseconds is None else _EPOCH + dt.timedelta(microseconds=microseconds)
