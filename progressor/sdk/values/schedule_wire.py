"""Schedules between values and messages."""

import datetime as dt
from typing import Any, assert_never

from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk.codec.codecs import Codec
from progressor.sdk.codec.wire import (
    duration_from_wire,
    duration_to_wire,
    instant_from_wire,
    object_from_wire,
    optional_instant_to_wire,
)
from progressor.sdk.values.constraints import (
    Constraints,
    constraints_from_wire,
    constraints_to_wire,
)
from progressor.sdk.values.graph import graph_from_wire, nodes_to_wire
from progressor.sdk.values.processes import HistoryRange
from progressor.sdk.values.requests import metadata_to_wire, range_to_wire
from progressor.sdk.values.results import read_range
from progressor.sdk.values.schedules import (
    CATCH_UP_WINDOW_DEFAULT,
    Cron,
    Every,
    Firing,
    FiringCause,
    FiringState,
    NextFiring,
    OverlapPolicy,
    Schedule,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleSpec,
    ScheduleView,
    Target,
    Times,
)
from progressor.sdk.values.waits import read_task_error
from progressor.v1 import schedule_service_pb2 as pb


def spec_to_wire(spec: ScheduleSpec, codec: Codec) -> pb.ScheduleSpec:
    """Return what a schedule does as its message.

    Raises:
        ValueError: An instant has no time zone, or a graph is empty.
    """
    message = pb.ScheduleSpec(
        jitter=duration_to_wire(spec.jitter),
        start_at=optional_instant_to_wire(spec.start_at),
        end_at=optional_instant_to_wire(spec.end_at),
        overlap_policy=policy_to_wire(spec.overlap_policy),
        catch_up_window=duration_to_wire(spec.catch_up_window),
    )
    _set_times(message, spec.times)
    _set_target(message, spec.target, codec)
    return message


def policy_to_wire(policy: OverlapPolicy) -> pb.OverlapPolicy.ValueType:
    """Return an overlap policy as its number."""
    return pb.OverlapPolicy.ValueType(policy.number)


def read_schedule(message: pb.Schedule, codec: Codec) -> Schedule:
    """Return a Schedule message as its value."""
    return Schedule(
        namespace=message.namespace,
        schedule_id=message.schedule_id,
        spec=read_spec(message.spec, codec),
        paused=message.paused,
        note=message.note,
        revision=message.revision,
        created_at=instant_from_wire(message.created_at),
        updated_at=instant_from_wire(message.updated_at),
        next_instant=_instant(message, "next_instant"),
        next_at=_instant(message, "next_at"),
        started_count=message.started_count,
        skipped_count=message.skipped_count,
        missed_count=message.missed_count,
        refused_count=message.refused_count,
    )


def read_spec(message: pb.ScheduleSpec, codec: Codec) -> ScheduleSpec:
    """Return what a schedule does as its value."""
    has_window = message.HasField("catch_up_window")
    return ScheduleSpec(
        times=_read_times(message),
        target=_read_target(message, codec),
        jitter=duration_from_wire(message.jitter),
        start_at=_instant(message, "start_at"),
        end_at=_instant(message, "end_at"),
        overlap_policy=OverlapPolicy.from_number(message.overlap_policy or pb.OVERLAP_POLICY_SKIP),
        catch_up_window=(
            duration_from_wire(message.catch_up_window) if has_window else CATCH_UP_WINDOW_DEFAULT
        ),
    )


def read_view(message: pb.GetScheduleResponse, codec: Codec) -> ScheduleView:
    """Return a schedule with its firings."""
    return ScheduleView(
        schedule=read_schedule(message.schedule, codec),
        next_firings=tuple(
            NextFiring(instant=instant_from_wire(it.instant), due_at=instant_from_wire(it.due_at))
            for it in message.next_firings
        ),
        last_firings=tuple(map(read_firing, message.last_firings)),
    )


def read_firing(message: pb.Firing) -> Firing:
    """Return a Firing message as its value."""
    return Firing(
        instant=instant_from_wire(message.instant),
        cause=FiringCause.from_number(message.cause),
        state=FiringState.from_number(message.state),
        due_at=_instant(message, "due_at"),
        fired_at=_instant(message, "fired_at"),
        started_at=_instant(message, "started_at"),
        ended_at=_instant(message, "ended_at"),
        process_id=message.process_id,
        task_id=message.task_id or None,
        error=read_task_error(message.error) if message.HasField("error") else None,
        missed_count=message.missed_count,
        missed_until=_instant(message, "missed_until"),
    )


def _set_times(message: pb.ScheduleSpec, times: Times) -> None:
    match times:
        case Cron(expression, time_zone):
            message.cron.CopyFrom(pb.CronTimes(expression=expression, time_zone=time_zone))
        case Every(interval, anchor):
            message.interval.CopyFrom(
                pb.IntervalTimes(
                    every=duration_to_wire(interval), anchor=optional_instant_to_wire(anchor)
                )
            )
        case _:
            assert_never(times)


def _set_target(message: pb.ScheduleSpec, target: Target, codec: Codec) -> None:
    match target:
        case ScheduledStart():
            message.start.CopyFrom(
                pb.ScheduledStart(
                    process_id_template=target.process_id_template,
                    args=codec.encode(target.args),
                    caller_context=target.context,
                    metadata=metadata_to_wire(target.metadata),
                    history_range=range_to_wire(target.history),
                    constraints=constraints_to_wire(target.constraints),
                )
            )
        case ScheduledCall():
            message.call.CopyFrom(pb.ScheduledCall(**_request_fields(target, codec)))
        case ScheduledNotify():
            message.notify.CopyFrom(pb.ScheduledNotify(**_request_fields(target, codec)))
        case ScheduledJob():
            message.job.CopyFrom(_job_to_wire(target, codec))
        case _:
            assert_never(target)


def _request_fields(target: ScheduledCall | ScheduledNotify, codec: Codec) -> dict[str, Any]:
    return {
        "process_id": target.process_id,
        "args": codec.encode(target.args),
        "caller_context": target.context,
        "history_range": range_to_wire(target.history),
        "constraints": constraints_to_wire(target.constraints),
    }


def _job_to_wire(target: ScheduledJob, codec: Codec) -> pb.ScheduledJob:
    if target.graph.present:
        message = f"the job has no node {target.graph.present[0]!r}: each firing has a new one"
        raise ValueError(message)
    return pb.ScheduledJob(
        job_id_template=target.job_id_template,
        nodes=nodes_to_wire(target.graph, codec),
        timeout=None if target.timeout is None else duration_to_wire(target.timeout),
        caller_context=target.context,
        metadata=metadata_to_wire(target.metadata),
    )


def _read_times(message: pb.ScheduleSpec) -> Times:
    if message.HasField("interval"):
        interval = message.interval
        return Every(duration_from_wire(interval.every), _instant(interval, "anchor"))
    return Cron(message.cron.expression, message.cron.time_zone)


def _read_target(message: pb.ScheduleSpec, codec: Codec) -> Target:
    match message.WhichOneof("target"):
        case "call":
            return ScheduledCall(**_read_request(message.call, codec))
        case "notify":
            return ScheduledNotify(**_read_request(message.notify, codec))
        case "job":
            job = message.job
            return ScheduledJob(
                graph_from_wire(job.nodes, codec),
                job_id_template=job.job_id_template,
                timeout=duration_from_wire(job.timeout) if job.HasField("timeout") else None,
                context=dict(job.caller_context),
                metadata=object_from_wire(job.metadata) if job.HasField("metadata") else None,
            )
        case _:
            start = message.start
            return ScheduledStart(
                codec.decode(start.args),
                process_id_template=start.process_id_template,
                context=dict(start.caller_context),
                metadata=object_from_wire(start.metadata) if start.HasField("metadata") else None,
                history=_history(start),
                constraints=_constraints(start),
            )


def _read_request(message: pb.ScheduledCall | pb.ScheduledNotify, codec: Codec) -> dict[str, Any]:
    return {
        "process_id": message.process_id,
        "args": codec.decode(message.args),
        "context": dict(message.caller_context),
        "history": _history(message),
        "constraints": _constraints(message),
    }


def _history(
    message: pb.ScheduledStart | pb.ScheduledCall | pb.ScheduledNotify,
) -> HistoryRange | None:
    return read_range(message.history_range) if message.HasField("history_range") else None


def _constraints(
    message: pb.ScheduledStart | pb.ScheduledCall | pb.ScheduledNotify,
) -> Constraints | None:
    constrained = message.HasField("constraints")
    return constraints_from_wire(message.constraints) if constrained else None


def _instant(message: Any, name: str) -> dt.datetime | None:  # noqa: ANN401  # the stubs know a literal of each message's own
    if not message.HasField(name):
        return None
    timestamp: Timestamp = getattr(message, name)
    return instant_from_wire(timestamp)
