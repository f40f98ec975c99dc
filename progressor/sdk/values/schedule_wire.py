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
    Cron,
    Every,
    Firing,
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
from progressor.v1 import schedule_service_pb2 as pb
from progressor.wire.shapes import Field, Shape


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


def read_spec(message: pb.ScheduleSpec, codec: Codec) -> ScheduleSpec:
    """Return what a schedule does as its value."""
    return _SPEC.read(message, context=codec)


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


_SPEC = Shape(
    ScheduleSpec,
    pb.ScheduleSpec,
    times=Field(read=lambda message, _path, _codec: _read_times(message)),
    target=Field(read=lambda message, _path, codec: _read_target(message, codec)),
    jitter=Field(read=lambda message, _path, _codec: duration_from_wire(message.jitter)),
)
_SCHEDULE = Shape(Schedule, pb.Schedule, spec=_SPEC)
_FIRING = Shape(Firing, pb.Firing)
_VIEW = Shape(ScheduleView, pb.GetScheduleResponse, schedule=_SCHEDULE)

read_firing = _FIRING.read


def read_schedule(message: pb.Schedule, codec: Codec) -> Schedule:
    """Return a Schedule message as its value."""
    return _SCHEDULE.read(message, context=codec)


def read_view(message: pb.GetScheduleResponse, codec: Codec) -> ScheduleView:
    """Return a schedule with its runs."""
    return _VIEW.read(message, context=codec)
