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


def view(key: ProcessKey, row: rows.ProcessRow, waits: tuple[Wait, ...]) -> ProcessView:
    """Return the process of a whole row, its timer, and what its `tasks` wait for."""
    timer = None
    if row.timer_task_id is not None:
        timer = Timer(
            task_id=row.timer_task_id,
            task_type=rows.TASK_TYPES[row.timer_type],
            status=rows.TASK_STATUSES[row.timer_status],
            due_at=row.timer_due_at,
        )
    return ProcessView(
        process=rows.process_of(key, row, result=row.result),
        timer=timer,
        waits=waits,
        role=None if row.job_role is None else _role(*row.job_role),
    )


def tasks(row: rows.ProcessRow) -> tuple[UnfinishedTask, ...]:
    """Return the unfinished tasks of a whole row, in the order in which they run."""
    return () if row.waits is None else tuple(map(task, row.waits))


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


def page(row: rows.ProcessRow, wanted: HistoryRange) -> HistoryPage | None:
    """Return the events of a whole row in the order wanted; None: they are too many for a batch."""
    if row.event_count == 0:
        return _NO_EVENTS
    if row.event_ids is None or len(row.event_ids) < row.event_count:
        return None
    events = list(
        map(
            Event,
            row.event_ids,
            row.occurred_at,
            row.payloads,
            row.format_versions,
            row.event_metadata,
            row.task_ids,
        )
    )
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
