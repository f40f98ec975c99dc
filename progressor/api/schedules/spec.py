"""What a schedule does, and when: from protobuf to domain and back.

The context of reading is a `SpecContext`; that of writing, whether the nodes of a job are written.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from progressor.api.calls.validation import check_id
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import GRAPH_BYTES_MAX, GraphError, encode_graph, plan_nodes
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import JobOptions, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.cron import EXPRESSION_BYTES_MAX, CronClock, CronError, zone_of
from progressor.domain.schedules.schedule import (
    CATCH_UP_MAX,
    CATCH_UP_MIN,
    INTERVAL_MAX,
    INTERVAL_MIN,
    JITTER_MAX,
    TEMPLATE_DEFAULT,
    CallTarget,
    CronTimes,
    IntervalTimes,
    JobTarget,
    ScheduleKey,
    ScheduleSpec,
    StartTarget,
    Target,
    Timing,
    target_id,
)
from progressor.v1 import nodes_pb2, types_pb2
from progressor.v1 import schedule_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from progressor.wire.nodes import CONSTRAINTS, check_node_count, node_spec_from_wire
from progressor.wire.processes import check_caller_context
from progressor.wire.shapes import UNSENT, Field, OneOf, Shape, Violations, between, flat, read_each

INSTANT_MIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INSTANT_MAX = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
"""Between these lie anchor, start and end of a schedule."""

# An instant whose text is as long as any.
_LONG_INSTANT = dt.datetime(2026, 1, 1, microsecond=1, tzinfo=dt.UTC)
_INSTANT_FIELD = "{instant}"


@dataclasses.dataclass(frozen=True, slots=True)
class SpecContext:
    """Whose spec is read, and how large its payloads may be."""

    key: ScheduleKey
    payload_bytes_max: int


_Request = pb.ScheduledStart | pb.ScheduledCall | pb.ScheduledNotify


def _expression_of(message: pb.CronTimes, path: str, _context: object) -> str:
    field, expression = f"{path}expression", message.expression
    size = len(expression.encode())
    if size > EXPRESSION_BYTES_MAX:
        wire.refuse(field, wire.too_large(size, EXPRESSION_BYTES_MAX))
    try:
        CronClock(expression, "UTC")
    except CronError as error:
        wire.refuse(field, str(error))
    return " ".join(expression.split())


def _time_zone_of(message: pb.CronTimes, path: str, _context: object) -> str:
    time_zone = message.time_zone or "UTC"
    try:
        zone_of(time_zone)
    except CronError as error:
        wire.refuse(f"{path}time_zone", str(error))
    return time_zone


def _check_instant(instant: dt.datetime, field: str) -> None:
    if not INSTANT_MIN <= instant <= INSTANT_MAX:
        wire.refuse(field, f"must be from 1970 to 2200, got {instant.isoformat()}")


def _check_timing(timing: Mapping[str, Any], path: str, _context: object) -> None:
    start_at, end_at = timing.get("start_at"), timing.get("end_at")
    if start_at is not None and end_at is not None and end_at < start_at:
        wire.refuse(f"{path}end_at", "must not be before start_at")


def _template(name: str) -> Field:
    def read(message: Any, path: str, context: SpecContext) -> str:  # noqa: ANN401  # of two
        template, field = getattr(message, name) or TEMPLATE_DEFAULT, f"{path}{name}"
        violations = Violations()
        if _INSTANT_FIELD not in template:
            violations.add(field, f"must contain {_INSTANT_FIELD}: each run needs an id of its own")
        made = target_id(template, context.key.schedule_id, _LONG_INSTANT)
        violations.attempt(check_id, made, field)
        violations.raise_any()
        return str(template)

    return Field(name=name, read=read)


def _args_of(message: _Request, path: str, context: SpecContext) -> bytes:
    wire.check_payload(message.args, f"{path}args", context.payload_bytes_max)
    return message.args


def _history_range_of(message: _Request, path: str, _context: object) -> HistoryRange | None:
    field = f"{path}history_range"
    if not message.HasField("history_range"):
        return None
    violations = Violations()
    if isinstance(message, pb.ScheduledStart) and message.history_range.after > 0:
        violations.add(f"{field}.after", "must be 0: a new process has no events")
    wanted = violations.attempt(process_wire.history_range_from_wire, message.history_range, field)
    violations.raise_any()
    return wanted


def _constraints_of(message: _Request, path: str, _context: object) -> Constraints | None:
    if not message.HasField("constraints"):
        return None
    constraints = process_wire.constraints_from_wire(message.constraints, f"{path}constraints")
    if constraints.run_at is not None:
        description = "must not be set: a schedule has instants of its own"
        wire.refuse(f"{path}constraints.run_at", description)
    return None if constraints.is_empty else constraints


def _nodes_of(message: pb.ScheduledJob, path: str, _context: object) -> tuple[NodeSpec, ...]:
    field, size = f"{path}nodes", message.ByteSize()
    check_node_count(message.nodes, field)
    if size > GRAPH_BYTES_MAX:
        wire.refuse(field, wire.too_large(size, GRAPH_BYTES_MAX))
    return tuple(read_each(enumerate(message.nodes), _node_of, field, None).values())


def _node_of(message: nodes_pb2.NodeSpec, field: str, _context: object) -> NodeSpec:
    if message.process_id:
        wire.refuse(f"{field}.process_id", "must not be set: each run needs followers of its own")
    # How large args may be is looked at with the place where the node is to run.
    return node_spec_from_wire(message, field, GRAPH_BYTES_MAX)


def _check_job(job: Mapping[str, Any], path: str, context: SpecContext) -> None:
    if "nodes" not in job or "template" not in job:
        return
    key = context.key
    action = StartNodes(nodes=job["nodes"], timeout=job.get("timeout"), schedule_id=key.schedule_id)
    leader_id = target_id(job["template"], key.schedule_id, _LONG_INSTANT)
    try:
        plan_nodes(process_key(key.namespace, leader_id), action, {})
    except GraphError as error:
        wire.refuse(f"{path}{error.field}", error.description)
    if (size := len(encode_graph(action))) > GRAPH_BYTES_MAX:
        wire.refuse(f"{path}nodes", wire.too_large(size, GRAPH_BYTES_MAX))


def _fill_nodes(message: pb.ScheduledJob, nodes: Iterable[NodeSpec], with_payloads: object) -> None:
    for node in nodes if with_payloads else ():
        _NODE_SPEC.write(node, message.nodes.add())


def _member_of(target: Target) -> str:
    match target:
        case StartTarget():
            return "start"
        case CallTarget():
            return "call" if target.task_type is TaskType.CALL else "notify"
        case JobTarget():
            return "job"
        case _:
            assert_never(target)


def _call(task_type: TaskType) -> Shape[CallTarget, Any]:
    return Shape(
        CallTarget,
        pb.ScheduledCall,
        task_type=dataclasses.replace(UNSENT, read=lambda *_: task_type),
        process_id=check_id,
        **_REQUEST,
    )


_NODE_SPEC = Shape(
    NodeSpec,
    nodes_pb2.NodeSpec,
    process_id=UNSENT,
    constraints=CONSTRAINTS,
    options=flat(
        Shape(JobOptions, nodes_pb2.NodeSpec, takes_results="wants_results", scheduled=UNSENT)
    ),
)
_REQUEST: Mapping[str, Any] = {
    "args": Field(read=_args_of),
    "caller_context": check_caller_context,
    "history_range": Field(
        shape=Shape(HistoryRange, types_pb2.HistoryRange), read=_history_range_of
    ),
    "constraints": dataclasses.replace(CONSTRAINTS, read=_constraints_of),
}
_TIMING = Shape(
    Timing,
    pb.ScheduleSpec,
    _check_timing,
    times=OneOf(
        name="times",
        shapes={
            "cron": Shape(
                CronTimes,
                pb.CronTimes,
                expression=Field(read=_expression_of),
                time_zone=Field(read=_time_zone_of),
            ),
            "interval": Shape(
                IntervalTimes,
                pb.IntervalTimes,
                every=Field(given=True, check=between(INTERVAL_MIN, INTERVAL_MAX)),
                anchor=_check_instant,
            ),
        },
        absent="must be cron or interval",
    ),
    jitter=between(dt.timedelta(), JITTER_MAX),
    start_at=_check_instant,
    end_at=_check_instant,
    catch_up_window=between(CATCH_UP_MIN, CATCH_UP_MAX),
)
_TARGET = OneOf(
    name="target",
    shapes={
        "start": Shape(
            StartTarget,
            pb.ScheduledStart,
            template=_template("process_id_template"),
            **_REQUEST,
        ),
        "call": _call(TaskType.CALL),
        "notify": _call(TaskType.NOTIFY),
        "job": Shape(
            JobTarget,
            pb.ScheduledJob,
            _check_job,
            template=_template("job_id_template"),
            nodes=Field(read=_nodes_of, write=_fill_nodes),
            timeout=between(dt.timedelta(microseconds=1), wire.TIMER_AFTER_MAX),
            caller_context=check_caller_context,
        ),
    },
    absent="must be start, call, notify or job",
    member_of=_member_of,
)
SPEC = Shape(ScheduleSpec, pb.ScheduleSpec, timing=flat(_TIMING), target=_TARGET)
"""What a schedule does, and when, written with every default."""
