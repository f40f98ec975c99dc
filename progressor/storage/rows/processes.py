"""Views: processes as people see them, each from one row of ``read_processes.sql``."""

import datetime as dt
from collections.abc import Sequence
from typing import Any

from progressor.domain.gates.constraint import GatedState, GateHold, Order, Version
from progressor.domain.gates.gate import GateHolder
from progressor.domain.processes.event import Direction, Event, HistoryRange
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskStatus
from progressor.domain.views.process import (
    FollowedJob,
    HistoryPage,
    JobRole,
    LedJob,
    ProcessView,
    Timer,
)
from progressor.domain.views.wait import (
    Gated,
    GateWait,
    Lease,
    OrderWait,
    TimeSpent,
    UnfinishedTask,
    Wait,
)
from progressor.storage.rows import tasks as rows

_CONSTRAINTS = 15
"""Where a task of a gated process tells of its constraints; others have nothing there."""

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


def view(key: ProcessKey, row: rows.Row, waits: tuple[Wait, ...]) -> ProcessView:
    """Return the process of a whole row, its timer, and what its `tasks` wait for."""
    return ProcessView(
        process=rows.process(key, row[2:12], result=row[12]),
        timer=None if row[13] is None else _timer(row[13:17]),
        waits=waits,
        role=None if row[25] is None else _role(*row[25]),
    )


def tasks(row: rows.Row) -> tuple[UnfinishedTask, ...]:
    """Return the unfinished tasks of a whole row, in the order in which they run."""
    return () if row[17] is None else tuple(map(task, row[17]))


def task(columns: Sequence[Any]) -> UnfinishedTask:
    """Return one unfinished task, as read_processes and read_first_waits tell it."""
    created_at = _instant(columns[12])
    assert created_at is not None, "a task has been created"
    return UnfinishedTask(
        task_id=columns[0],
        task_type=rows.TASK_TYPES[columns[1]],
        status=rows.TASK_STATUSES[columns[2]],
        attempt_count=columns[4],
        created_at=created_at,
        due_at=_instant(columns[3]),
        is_due=bool(columns[11]),
        lease=None if columns[5] is None else _lease(columns),
        last_error=rows.task_error(columns[6:11]),
        gated=_gated(columns[_CONSTRAINTS]) if len(columns) > _CONSTRAINTS else None,
    )


def time_spent(microseconds: Sequence[int]) -> TimeSpent:
    """Return what spent_us counts."""
    time, order, process, gates, available, running = (
        dt.timedelta(microseconds=count) for count in microseconds
    )
    return TimeSpent(
        time=time,
        order=order,
        process=process,
        gates=gates,
        available=available,
        running=running,
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


def _role(led: Sequence[int] | None, followed: Sequence[str] | None) -> JobRole | None:
    """Return the part in jobs that is left; a follower's job may be gone."""
    if led is None and followed is None:
        return None
    return JobRole(
        led=None if led is None else LedJob(unfinished_count=led[0], node_count=led[1]),
        followed=None if followed is None else FollowedJob(*followed),
    )


def _timer(columns: rows.Row) -> Timer:
    return Timer(
        task_id=columns[0],
        task_type=rows.TASK_TYPES[columns[1]],
        status=rows.TASK_STATUSES[columns[2]],
        due_at=columns[3],
    )


def _lease(columns: Sequence[Any]) -> Lease:
    leased_at, expires_at = map(_instant, columns[13:15])
    assert leased_at is not None, "a lease began"
    assert expires_at is not None, "a lease ends"
    return Lease(replica_id=columns[5], leased_at=leased_at, expires_at=expires_at)


def _gated(columns: Sequence[Any] | None) -> Gated | None:
    if columns is None:
        return None
    state, since, spent, order, gates, behind_task_id = columns
    return Gated(
        state=GatedState(state),
        since=_EPOCH + dt.timedelta(microseconds=since),
        spent=time_spent(spent),
        order=None if order is None else _order(order),
        gates=tuple(map(_gate, gates or ())),
        behind_task_id=behind_task_id,
    )


def _order(columns: Sequence[Any]) -> OrderWait:
    key, version, process_id, task_id, smaller, status = columns
    return OrderWait(
        order=Order(key, Version(tuple(version))),
        process_id=process_id,
        task_id=task_id,
        version=Version(tuple(smaller)),
        status=TaskStatus(status),
    )


def _gate(columns: Sequence[Any]) -> GateWait:
    gate, capacity, held, holders, position, waiting_count = columns
    return GateWait(
        gate=gate,
        capacity=capacity,
        held=held,
        holders=tuple(map(_holder, holders or ())),
        position=position,
        waiting_count=waiting_count,
    )


def _holder(columns: Sequence[Any]) -> GateHolder:
    process_id, task_id, held_at, hold, is_reserved = columns
    return GateHolder(
        process_id=process_id,
        task_id=task_id,
        held_at=_EPOCH + dt.timedelta(microseconds=held_at),
        hold=GateHold(hold),
        is_reserved=is_reserved,
    )


def _instant(microseconds: int | None) -> dt.datetime | None:
    return None if microseconds is None else _EPOCH + dt.timedelta(microseconds=microseconds)
