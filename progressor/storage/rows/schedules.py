"""Schedules as the columns of their table, both ways."""

import datetime as dt
from typing import Any, NamedTuple, assert_never

import msgspec

from progressor.domain.jobs.graph import decode_graph, encode_graph
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.admission import Request
from progressor.domain.processes.process import Leadership, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    CronTimes,
    IntervalTimes,
    JobTarget,
    OverlapPolicy,
    Schedule,
    ScheduleKey,
    ScheduleSpec,
    StartTarget,
    Target,
    Times,
    Timing,
    Upcoming,
)
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.constraints import constraints_of, constraints_text

START, JOB = "start", "job"


class DueScheduleRow(NamedTuple):
    """A claimed schedule, without what it starts."""

    slot: int
    namespace: str
    schedule_id: str
    cron: str | None
    time_zone: str
    every: dt.timedelta
    anchor: dt.datetime
    jitter: dt.timedelta
    start_at: dt.datetime | None
    end_at: dt.datetime | None
    overlap_policy: str
    catch_up_window: dt.timedelta
    target: str
    target_id: str
    is_gated: bool
    revision: int
    next_instant: dt.datetime
    next_at: dt.datetime
    claimed_at: dt.datetime


class ScheduleRow(NamedTuple):
    """A schedule with what it starts; ``args`` are None in lists."""

    slot: int
    namespace: str
    schedule_id: str
    cron: str | None
    time_zone: str
    every: dt.timedelta
    anchor: dt.datetime
    jitter: dt.timedelta
    start_at: dt.datetime | None
    end_at: dt.datetime | None
    overlap_policy: str
    catch_up_window: dt.timedelta
    target: str
    target_id: str
    args: bytes | None
    caller_context: dict[str, str] | None
    metadata: dict[str, Any] | None
    history_after: int | None
    history_limit: int | None
    history_backward: bool | None
    constraints: dict[str, Any] | None
    paused: bool
    note: str
    revision: int
    created_at: dt.datetime
    updated_at: dt.datetime
    next_instant: dt.datetime | None
    next_at: dt.datetime | None
    started_count: int
    skipped_count: int
    missed_count: int
    refused_count: int


def timing_columns(timing: Timing) -> dict[str, Any]:
    """Return when a schedule runs, as named parameters."""
    columns: dict[str, Any] = {
        "cron": None,
        "time_zone": None,
        "every": None,
        "anchor": None,
        "jitter": timing.jitter,
        "start_at": timing.start_at,
        "end_at": timing.end_at,
        "overlap_policy": timing.overlap_policy.value,
        "catch_up_window": timing.catch_up_window,
    }
    match timing.times:
        case CronTimes(expression, time_zone):
            columns |= {"cron": expression, "time_zone": time_zone}
        case IntervalTimes(every, anchor):
            columns |= {"every": every, "anchor": anchor}
        case _:
            assert_never(timing.times)
    return columns


def target_columns(key: ScheduleKey, target: Target) -> dict[str, Any]:
    """Return what a schedule starts, as named parameters."""
    request, name, target_id = _request_of(key, target)
    after, limit, backward = rows.history_columns(request.history_range)
    metadata = None if request.metadata is None else msgspec.json.encode(request.metadata).decode()
    constraints = constraints_text(request.constraints)
    return {
        "target": name,
        "target_id": target_id,
        "args": request.args,
        "caller_context": msgspec.json.encode(request.caller_context).decode(),
        "metadata": metadata,
        "history_after": after,
        "history_limit": limit,
        "history_backward": backward,
        "constraints": None if constraints is None else constraints.decode(),
        "fingerprint": request.fingerprint(),
    }


def timing_of(row: DueScheduleRow | ScheduleRow) -> Timing:
    """Return when a schedule runs."""
    times: Times
    if row.cron is None:
        times = IntervalTimes(row.every, row.anchor)
    else:
        times = CronTimes(row.cron, row.time_zone)
    return Timing(
        times=times,
        jitter=row.jitter,
        start_at=row.start_at,
        end_at=row.end_at,
        overlap_policy=OverlapPolicy(row.overlap_policy),
        catch_up_window=row.catch_up_window,
    )


def schedule_of(row: ScheduleRow) -> Schedule:
    """Return the schedule of a row."""
    upcoming = None
    if row.next_instant is not None and row.next_at is not None:
        upcoming = Upcoming(row.next_instant, row.next_at)
    return Schedule(
        key=ScheduleKey(row.slot, row.namespace, row.schedule_id),
        spec=ScheduleSpec(timing=timing_of(row), target=_target_of(row)),
        paused=row.paused,
        note=row.note,
        revision=row.revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        upcoming=upcoming,
        started_count=row.started_count,
        skipped_count=row.skipped_count,
        missed_count=row.missed_count,
        refused_count=row.refused_count,
    )


def _request_of(key: ScheduleKey, target: Target) -> tuple[Request, str, str]:
    """Return what each run asks for, but for the process; and the target's two columns.

    The key of the request stands for any: a fingerprint does not tell processes apart.
    """
    leader_key = process_key(key.namespace, key.schedule_id)
    match target:
        case StartTarget():
            request = Request(
                key=leader_key,
                task_type=TaskType.INIT,
                args=target.args,
                caller_context=target.caller_context,
                history_range=target.history_range,
                metadata=target.metadata,
                constraints=target.constraints,
            )
            return request, START, target.template
        case CallTarget():
            request = Request(
                key=leader_key,
                task_type=target.task_type,
                args=target.args,
                caller_context=target.caller_context,
                history_range=target.history_range,
                constraints=target.constraints,
            )
            return request, target.task_type.value, target.process_id
        case JobTarget():
            graph = StartNodes(
                nodes=target.nodes,
                timeout=target.timeout,
                schedule_id=key.schedule_id,
            )
            request = Request(
                key=leader_key,
                task_type=TaskType.INIT,
                args=encode_graph(graph),
                caller_context=target.caller_context,
                metadata=target.metadata,
                led_by=Leadership.ENGINE,
            )
            return request, JOB, target.template
        case _:
            assert_never(target)


def _target_of(row: ScheduleRow) -> Target:
    history_range = rows.history_range(
        row.history_after, row.history_limit, backward=row.history_backward
    )
    if row.target == JOB:
        graph = StartNodes(nodes=()) if row.args is None else decode_graph(row.args)
        return JobTarget(
            nodes=graph.nodes,
            template=row.target_id,
            timeout=graph.timeout,
            caller_context=row.caller_context or {},
            metadata=row.metadata,
        )
    if row.target == START:
        return StartTarget(
            template=row.target_id,
            args=row.args or b"",
            caller_context=row.caller_context or {},
            metadata=row.metadata,
            history_range=history_range,
            constraints=constraints_of(row.constraints),
        )
    return CallTarget(
        task_type=TaskType(row.target),
        process_id=row.target_id,
        args=row.args or b"",
        caller_context=row.caller_context or {},
        history_range=history_range,
        constraints=constraints_of(row.constraints),
    )
