"""Schedules as the columns of their table, both ways."""

import datetime as dt
from typing import Any, assert_never

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


def timing_columns(timing: Timing) -> dict[str, Any]:
    """Return when a schedule fires, as named parameters."""
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


def timing_of(columns: rows.Row) -> Timing:
    """Return the timing of the nine columns cron .. catch_up_window."""
    cron, time_zone, every, anchor, jitter, start_at, end_at, policy, window = columns
    times: Times = IntervalTimes(every, anchor) if cron is None else CronTimes(cron, time_zone)
    return Timing(
        times=times,
        jitter=jitter,
        start_at=start_at,
        end_at=end_at,
        overlap_policy=OverlapPolicy(policy),
        catch_up_window=window,
    )


def upcoming_of(instant: dt.datetime | None, due_at: dt.datetime | None) -> Upcoming | None:
    """Return what is due next, of its two columns."""
    if instant is None or due_at is None:
        return None
    return Upcoming(instant, due_at)


def schedule_of(row: rows.Row) -> Schedule:
    """Return the schedule of a row of get_schedule or list_schedules."""
    return Schedule(
        key=ScheduleKey(*row[:3]),
        spec=ScheduleSpec(timing=timing_of(row[3:12]), target=_target_of(row[12:21])),
        paused=row[21],
        note=row[22],
        revision=row[23],
        created_at=row[24],
        updated_at=row[25],
        upcoming=upcoming_of(row[26], row[27]),
        started_count=row[28],
        skipped_count=row[29],
        missed_count=row[30],
        refused_count=row[31],
    )


def _request_of(key: ScheduleKey, target: Target) -> tuple[Request, str, str]:
    """Return what each firing asks for, but for the process; and the target's two columns.

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


def _target_of(columns: rows.Row) -> Target:
    """Return the target of the nine columns target .. constraints; args are None in lists."""
    name, target_id, args, caller_context, metadata, after, limit, backward, constraints = columns
    history_range = rows.history_range(after, limit, backward=backward)
    if name == JOB:
        graph = StartNodes(nodes=()) if args is None else decode_graph(bytes(args))
        return JobTarget(
            nodes=graph.nodes,
            template=target_id,
            timeout=graph.timeout,
            caller_context=caller_context or {},
            metadata=metadata,
        )
    if name == START:
        return StartTarget(
            template=target_id,
            args=bytes(args or b""),
            caller_context=caller_context or {},
            metadata=metadata,
            history_range=history_range,
            constraints=constraints_of(constraints),
        )
    return CallTarget(
        task_type=TaskType(name),
        process_id=target_id,
        args=bytes(args or b""),
        caller_context=caller_context or {},
        history_range=history_range,
        constraints=constraints_of(constraints),
    )
