"""What a schedule does, and when: from protobuf to domain and back."""

import datetime as dt
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import assert_never

from google.protobuf.message import Message

from progressor.api.calls.validation import (
    Violations,
    caller_context_from_wire,
    check_id,
    check_payload,
    duration_from_wire,
    instant_from_wire,
    metadata_from_wire,
)
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import GRAPH_BYTES_MAX, GraphError, encode_graph, plan_nodes
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.event import HistoryRange
from progressor.domain.processes.process import JobOptions, process_key
from progressor.domain.processes.task import TaskType
from progressor.domain.schedules.cron import EXPRESSION_BYTES_MAX, CronClock, CronError, zone_of
from progressor.domain.schedules.schedule import (
    CATCH_UP_DEFAULT,
    CATCH_UP_MAX,
    CATCH_UP_MIN,
    EPOCH,
    INTERVAL_MAX,
    INTERVAL_MIN,
    JITTER_MAX,
    TEMPLATE_DEFAULT,
    CallTarget,
    CronTimes,
    IntervalTimes,
    JobTarget,
    OverlapPolicy,
    ScheduleKey,
    ScheduleSpec,
    StartTarget,
    Target,
    Times,
    Timing,
    target_id,
)
from progressor.v1 import nodes_pb2, types_pb2
from progressor.v1 import schedule_service_pb2 as messages
from progressor.wire import fields as wire
from progressor.wire.nodes import CONSTRAINTS, check_node_count, node_spec_from_wire
from progressor.wire.shapes import UNSENT, Field, OneOf, Shape, flat

OVERLAP_POLICY_TO_WIRE: Mapping[OverlapPolicy, messages.OverlapPolicy.ValueType] = MappingProxyType(
    {
        OverlapPolicy.SKIP: messages.OVERLAP_POLICY_SKIP,
        OverlapPolicy.QUEUE_ONE: messages.OVERLAP_POLICY_QUEUE_ONE,
        OverlapPolicy.ALLOW: messages.OVERLAP_POLICY_ALLOW,
        OverlapPolicy.CANCEL_PREVIOUS: messages.OVERLAP_POLICY_CANCEL_PREVIOUS,
    }
)
_OVERLAP_POLICY_FROM_WIRE: Mapping[int, OverlapPolicy] = MappingProxyType(
    {number: policy for policy, number in OVERLAP_POLICY_TO_WIRE.items()}
)

_HISTORY_RANGE = Shape(HistoryRange, types_pb2.HistoryRange)
_TIMING = Shape(
    Timing,
    messages.ScheduleSpec,
    times=OneOf(
        name="times",
        shapes={
            "cron": Shape(CronTimes, messages.CronTimes),
            "interval": Shape(IntervalTimes, messages.IntervalTimes),
        },
    ),
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
_CALL = Shape(
    CallTarget,
    messages.ScheduledCall,
    task_type=UNSENT,
    history_range=_HISTORY_RANGE,
    constraints=CONSTRAINTS,
)


def _fill_nodes(
    message: messages.ScheduledJob, nodes: Iterable[NodeSpec], with_payloads: object
) -> None:
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


_TARGET = OneOf(
    name="target",
    shapes={
        "start": Shape(
            StartTarget,
            messages.ScheduledStart,
            template="process_id_template",
            history_range=_HISTORY_RANGE,
            constraints=CONSTRAINTS,
        ),
        "call": _CALL,
        "notify": _CALL,
        "job": Shape(
            JobTarget,
            messages.ScheduledJob,
            template="job_id_template",
            nodes=Field(write=_fill_nodes),
        ),
    },
    member_of=_member_of,
)
SPEC = Shape(ScheduleSpec, messages.ScheduleSpec, timing=flat(_TIMING), target=_TARGET)
"""What a schedule does, written with every default; the context says whether with its nodes."""

INSTANT_MIN = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INSTANT_MAX = dt.datetime(2200, 1, 1, tzinfo=dt.UTC)
"""Between these lie anchor, start and end of a schedule."""

# An instant whose text is as long as any.
_LONG_INSTANT = dt.datetime(2026, 1, 1, microsecond=1, tzinfo=dt.UTC)
_INSTANT_FIELD = "{instant}"


class _Within(Violations):
    """Notes what is wrong with a part of a request: its fields are named from the whole."""

    __slots__ = ("_path", "_whole")

    def __init__(self, whole: Violations, path: str) -> None:
        super().__init__()
        self._whole, self._path = whole, path

    def add(self, field: str, description: str) -> None:
        super().add(field, description)
        self._whole.add(f"{self._path}.{field}", description)


def spec_from_wire(
    message: messages.ScheduleSpec,
    key: ScheduleKey,
    violations: Violations,
    *,
    payload_bytes_max: int,
) -> ScheduleSpec | None:
    """Return a spec; None, or one that is worth nothing, once there are violations."""
    within = _Within(violations, "spec")
    timing = _timing_of(message, within)
    target = _target_of(message, key, within, payload_bytes_max)
    if timing is None or target is None:
        return None
    return ScheduleSpec(timing=timing, target=target)


def overlap_policy_from_wire(
    number: int, field: str, violations: Violations
) -> OverlapPolicy | None:
    """Return a policy; None for none given."""
    policy = _OVERLAP_POLICY_FROM_WIRE.get(number)
    if policy is None and number:
        violations.add(field, f"{number} is not an overlap policy")
    return policy


def _timing_of(message: messages.ScheduleSpec, violations: Violations) -> Timing | None:
    times = _times_of(message, violations)
    jitter = dt.timedelta()
    if message.HasField("jitter"):
        jitter = _duration_of(message, "jitter", (dt.timedelta(), JITTER_MAX), violations)
    window = CATCH_UP_DEFAULT
    if message.HasField("catch_up_window"):
        bounds = (CATCH_UP_MIN, CATCH_UP_MAX)
        window = _duration_of(message, "catch_up_window", bounds, violations)
    start_at = _instant_of(message, "start_at", violations)
    end_at = _instant_of(message, "end_at", violations)
    if start_at is not None and end_at is not None and end_at < start_at:
        violations.add("end_at", "is before start_at")
    policy = overlap_policy_from_wire(message.overlap_policy, "overlap_policy", violations)
    if times is None:
        return None
    return Timing(
        times=times,
        jitter=jitter,
        start_at=start_at,
        end_at=end_at,
        overlap_policy=policy or OverlapPolicy.SKIP,
        catch_up_window=window,
    )


def _times_of(message: messages.ScheduleSpec, violations: Violations) -> Times | None:
    match message.WhichOneof("times"):
        case "cron":
            return _cron_of(message.cron, _Within(violations, "cron"))
        case "interval":
            within = _Within(violations, "interval")
            if not message.interval.HasField("every"):
                within.add("every", "must be given")
                return None
            bounds = (INTERVAL_MIN, INTERVAL_MAX)
            every = _duration_of(message.interval, "every", bounds, within)
            anchor = _instant_of(message.interval, "anchor", within)
            return IntervalTimes(every, anchor or EPOCH)
        case _:
            violations.add("times", "is neither cron nor interval")
            return None


def _cron_of(message: messages.CronTimes, violations: Violations) -> CronTimes | None:
    expression, time_zone = message.expression, message.time_zone or "UTC"
    if len(expression.encode()) > EXPRESSION_BYTES_MAX:
        violations.add("expression", f"is longer than {EXPRESSION_BYTES_MAX} bytes")
        return None
    try:
        CronClock(expression, "UTC")
    except CronError as error:
        violations.add("expression", str(error))
    try:
        zone_of(time_zone)
    except CronError as error:
        violations.add("time_zone", str(error))
    return CronTimes(" ".join(expression.split()), time_zone)


def _duration_of(
    message: messages.ScheduleSpec | messages.IntervalTimes | messages.ScheduledJob,
    field: str,
    bounds: tuple[dt.timedelta, dt.timedelta],
    violations: Violations,
) -> dt.timedelta:
    value = duration_from_wire(getattr(message, field), field, violations)
    if value is None or value < dt.timedelta():
        return bounds[0]
    if not bounds[0] <= value <= bounds[1]:
        violations.add(field, f"{value} is not in {bounds[0]} .. {bounds[1]}")
    return value


def _instant_of(
    message: messages.ScheduleSpec | messages.IntervalTimes, field: str, violations: Violations
) -> dt.datetime | None:
    if not _has(message, field):
        return None
    instant = instant_from_wire(getattr(message, field), field, violations)
    if instant is not None and not INSTANT_MIN <= instant <= INSTANT_MAX:
        violations.add(field, f"{instant.isoformat()} is not in 1970 .. 2200")
    return instant


def _has(message: Message, field: str) -> bool:
    """Tell whether a field is there; the name is one that the type of the message has."""
    return message.HasField(field)


def _target_of(
    message: messages.ScheduleSpec,
    key: ScheduleKey,
    violations: Violations,
    payload_bytes_max: int,
) -> Target | None:
    match message.WhichOneof("target"):
        case "start":
            within = _Within(violations, "start")
            return _start_of(message.start, key, within, payload_bytes_max)
        case "call":
            within = _Within(violations, "call")
            return _call_of(message.call, TaskType.CALL, within, payload_bytes_max)
        case "notify":
            within = _Within(violations, "notify")
            return _call_of(message.notify, TaskType.NOTIFY, within, payload_bytes_max)
        case "job":
            return _job_of(message.job, key, _Within(violations, "job"))
        case _:
            violations.add("target", "is none of start, call, notify and job")
            return None


def _start_of(
    message: messages.ScheduledStart,
    key: ScheduleKey,
    violations: Violations,
    payload_bytes_max: int,
) -> StartTarget:
    template = _template_of(message.process_id_template, "process_id_template", key, violations)
    check_payload(message.args, "args", payload_bytes_max, violations)
    if message.history_range.after > 0:
        violations.add("history_range.after", "must be 0: a new process has no events")
    return StartTarget(
        template=template,
        args=message.args,
        caller_context=caller_context_from_wire(message.caller_context, violations),
        metadata=_metadata_of(message, violations),
        history_range=_history_range_of(message, violations),
        constraints=_constraints_of(message, violations),
    )


def _call_of(
    message: messages.ScheduledCall | messages.ScheduledNotify,
    task_type: TaskType,
    violations: Violations,
    payload_bytes_max: int,
) -> CallTarget:
    check_id(message.process_id, "process_id", violations)
    check_payload(message.args, "args", payload_bytes_max, violations)
    return CallTarget(
        task_type=task_type,
        process_id=message.process_id,
        args=message.args,
        caller_context=caller_context_from_wire(message.caller_context, violations),
        history_range=_history_range_of(message, violations),
        constraints=_constraints_of(message, violations),
    )


def _job_of(
    message: messages.ScheduledJob, key: ScheduleKey, violations: Violations
) -> JobTarget | None:
    template = _template_of(message.job_id_template, "job_id_template", key, violations)
    timeout = None
    if message.HasField("timeout"):
        bounds = (dt.timedelta(microseconds=1), wire.TIMER_AFTER_MAX)
        timeout = _duration_of(message, "timeout", bounds, violations)
    nodes = violations.attempt(_nodes_of, message)
    caller_context = caller_context_from_wire(message.caller_context, violations)
    metadata = _metadata_of(message, violations)
    if nodes is None or violations:
        return None
    action = StartNodes(nodes=nodes, timeout=timeout, schedule_id=key.schedule_id)
    leader = process_key(key.namespace, target_id(template, key.schedule_id, _LONG_INSTANT))
    try:
        plan_nodes(leader, action, {})
    except GraphError as error:
        violations.add(error.field, error.description)
    if (size := len(encode_graph(action))) > GRAPH_BYTES_MAX:
        violations.add("nodes", f"{size} bytes are more than {GRAPH_BYTES_MAX}")
    return JobTarget(
        nodes=nodes,
        template=template,
        timeout=timeout,
        caller_context=caller_context,
        metadata=metadata,
    )


def _nodes_of(message: messages.ScheduledJob) -> tuple[NodeSpec, ...]:
    check_node_count(message.nodes, "nodes")
    size = message.ByteSize()
    if size > GRAPH_BYTES_MAX:
        wire.refuse("nodes", f"{size} bytes are more than {GRAPH_BYTES_MAX}")
    for place, node in enumerate(message.nodes):
        if node.process_id:
            wire.refuse(f"nodes[{place}].process_id", "each firing needs followers of its own")
    return tuple(
        # How large args may be is looked at with the place where the node is to run.
        node_spec_from_wire(node, f"nodes[{place}]", GRAPH_BYTES_MAX)
        for place, node in enumerate(message.nodes)
    )


def _template_of(template: str, field: str, key: ScheduleKey, violations: Violations) -> str:
    template = template or TEMPLATE_DEFAULT
    if _INSTANT_FIELD not in template:
        violations.add(field, f"has no {_INSTANT_FIELD}: each firing needs an id of its own")
    made = target_id(template, key.schedule_id, _LONG_INSTANT)
    check_id(made, field, violations)
    return template


def _metadata_of(
    message: messages.ScheduledStart | messages.ScheduledJob, violations: Violations
) -> dict[str, object] | None:
    if not message.HasField("metadata"):
        return None
    return metadata_from_wire(message.metadata, "metadata", violations)


def _history_range_of(
    message: messages.ScheduledStart | messages.ScheduledCall | messages.ScheduledNotify,
    violations: Violations,
) -> HistoryRange | None:
    if not message.HasField("history_range"):
        return None
    return violations.attempt(wire.history_range_from_wire, message.history_range, "history_range")


def _constraints_of(
    message: messages.ScheduledStart | messages.ScheduledCall | messages.ScheduledNotify,
    violations: Violations,
) -> Constraints | None:
    if not message.HasField("constraints"):
        return None
    constraints = violations.attempt(wire.constraints_from_wire, message.constraints, "constraints")
    if constraints is None or constraints.is_empty:
        return None
    if constraints.run_at is not None:
        violations.add("constraints.run_at", "is not for schedules, which have their own instants")
    return constraints
