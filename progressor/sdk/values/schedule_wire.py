"""Schedules between values and messages."""

import dataclasses
from typing import Any

from progressor.sdk.codec.codecs import Codec
from progressor.sdk.codec.wire import duration, duration_from_wire, instant, metadata, payload
from progressor.sdk.values.constraints import CONSTRAINTS
from progressor.sdk.values.graph import Graph, graph_from_wire, nodes_to_wire
from progressor.sdk.values.process_wire import RANGE
from progressor.sdk.values.schedules import (
    Backfilled,
    Cron,
    Every,
    OverlapPolicy,
    Schedule,
    ScheduledCall,
    ScheduledJob,
    ScheduledNotify,
    ScheduledStart,
    ScheduleRun,
    ScheduleSpec,
    ScheduleView,
)
from progressor.v1 import schedule_service_pb2 as pb
from progressor.wire.shapes import Field, OneOf, Shape


def _write_graph(message: pb.ScheduledJob, graph: Graph, codec: Codec) -> None:
    if graph.present:
        text = f"the graph has no node {graph.present[0]!r}: each run submits a new job"
        raise ValueError(text)
    message.nodes.extend(nodes_to_wire(graph, codec))


_REQUEST: dict[str, Any] = {
    "args": payload("args"),
    "context": "caller_context",
    "history": RANGE,
    "constraints": CONSTRAINTS,
}
_SPEC = Shape(
    ScheduleSpec,
    pb.ScheduleSpec,
    times=OneOf(
        name="times",
        fallback="cron",
        shapes={
            "cron": Shape(Cron, pb.CronTimes),
            "interval": Shape(
                Every, pb.IntervalTimes, interval=duration("every"), anchor=instant("anchor")
            ),
        },
    ),
    target=OneOf(
        name="target",
        fallback="start",
        shapes={
            "start": Shape(ScheduledStart, pb.ScheduledStart, metadata=metadata(), **_REQUEST),
            "call": Shape(ScheduledCall, pb.ScheduledCall, **_REQUEST),
            "notify": Shape(ScheduledNotify, pb.ScheduledNotify, **_REQUEST),
            "job": Shape(
                ScheduledJob,
                pb.ScheduledJob,
                graph=Field(
                    read=lambda message, _path, codec: graph_from_wire(message.nodes, codec),
                    write=_write_graph,
                ),
                timeout=duration("timeout"),
                context="caller_context",
                metadata=metadata(),
            ),
        },
    ),
    jitter=dataclasses.replace(
        duration("jitter"),
        # An engine leaves out none at all, which reads as a duration all the same.
        read=lambda message, _path, _codec: duration_from_wire(message.jitter),
    ),
    start_at=instant("start_at"),
    end_at=instant("end_at"),
    catch_up_window=duration("catch_up_window"),
)
_SCHEDULE = Shape(Schedule, pb.Schedule, spec=_SPEC)
_VIEW = Shape(ScheduleView, pb.GetScheduleResponse, schedule=_SCHEDULE)

read_run = Shape(ScheduleRun, pb.ScheduleRun).read
read_backfilled = Shape(Backfilled, pb.BackfillScheduleResponse).read


def spec_to_wire(spec: ScheduleSpec, codec: Codec) -> pb.ScheduleSpec:
    """Return the spec of a schedule as a message.

    Raises:
        ValueError: A datetime has no time zone, or a graph is empty or not complete.
    """
    return _SPEC.message(spec, codec)


def read_spec(message: pb.ScheduleSpec, codec: Codec) -> ScheduleSpec:
    """Return the spec of a schedule."""
    return _SPEC.read(message, context=codec)


def policy_to_wire(policy: OverlapPolicy) -> pb.OverlapPolicy.ValueType:
    """Return an overlap policy as its number."""
    return pb.OverlapPolicy.ValueType(policy.number)


def read_schedule(message: pb.Schedule, codec: Codec) -> Schedule:
    """Return a schedule."""
    return _SCHEDULE.read(message, context=codec)


def read_view(message: pb.GetScheduleResponse, codec: Codec) -> ScheduleView:
    """Return a schedule with its runs."""
    return _VIEW.read(message, context=codec)
