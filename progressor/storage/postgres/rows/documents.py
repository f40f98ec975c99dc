"""Values that are kept as JSON or as several columns, both ways."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import msgspec

from progressor.domain.gates.constraint import (
    PRIORITY_DEFAULT,
    Constraints,
    GateHold,
    Order,
    Version,
)
from progressor.domain.jobs.graph import decode_graph, encode_graph
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.admission import Request
from progressor.domain.processes.event import Direction, HistoryRange
from progressor.domain.processes.failure import normalized
from progressor.domain.processes.intent import SetTimer, UnsetTimer
from progressor.domain.processes.process import (
    NO_OPTIONS,
    JobOptions,
    Leadership,
    Part,
    ProcessKey,
    process_key,
)
from progressor.domain.processes.task import TaskStatus, TaskType
from progressor.domain.schedules.schedule import (
    CallTarget,
    CronTimes,
    IntervalTimes,
    JobTarget,
    ScheduleKey,
    StartTarget,
    Target,
    Times,
    Timing,
)
from progressor.domain.views.wait import OrderWait, TimeSpent

START, JOB = "start", "job"
"""The targets of schedules besides the types of tasks."""

HISTORY_COLUMNS = ("history_after", "history_limit", "history_backward")
TIMES_COLUMNS = ("cron", "time_zone", "every", "anchor")
TARGET_COLUMNS = (
    "target", "target_id", "args", "caller_context", "metadata", *HISTORY_COLUMNS, "constraints",
)  # fmt: skip

_encode = msgspec.json.Encoder().encode
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_STATES = tuple(field.name for field in dataclasses.fields(TimeSpent))


def json_text(value: Mapping[str, object] | None) -> bytes | None:
    """Return a mapping as JSON; None for None and for an empty one."""
    return _encode(value) if value else None


def instant_of(value: int | str) -> dt.datetime:
    """Return an instant of a JSON column: microseconds from 1970 on, or as to_json writes it."""
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value).astimezone(dt.UTC)
    return _EPOCH + value * _MICROSECOND


def constraints_text(constraints: Constraints | None) -> bytes | None:
    """Return constraints as JSON; what has its default is left out."""
    if constraints is None:
        return None
    column: dict[str, Any] = {}
    if constraints.run_at is not None:
        column["run_at"] = (constraints.run_at - _EPOCH) // _MICROSECOND
    if constraints.order is not None:
        column["order"] = [constraints.order.key, constraints.order.version.parts]
    if constraints.gates:
        column["gates"] = dict(constraints.gates)
    if constraints.priority != PRIORITY_DEFAULT:
        column["priority"] = constraints.priority
    if constraints.hold is not GateHold.TASK:
        column["hold"] = constraints.hold.value
    return _encode(column)


def failure_text(
    message: str, process_id: str, *, task_type: TaskType | None, release: str = ""
) -> bytes:
    """Return what a failure has in common with others as JSON for ``make_failure_id``."""
    column = {"message": normalized(message, process_id), "task_type": task_type}
    return _encode(column | {"release": release} if release else column)


def timer_word(change: SetTimer | UnsetTimer) -> str:
    """Return a change of a timer as ``settle_tasks`` takes it: the task's type, or "unset"."""
    if isinstance(change, UnsetTimer):
        return "unset"
    return TaskType.REMOVE if change.remove else TaskType.TIMEOUT


def timers_text(
    changes: Mapping[str, SetTimer | UnsetTimer], trace_context: Mapping[str, str]
) -> bytes:
    """Return changes of timers as JSON for ``read_timer_changes``."""
    return _encode([_timer_column(name, it, trace_context) for name, it in changes.items()])


def _timer_column(
    name: str, change: SetTimer | UnsetTimer, trace_context: Mapping[str, str]
) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": timer_word(change)}
    if isinstance(change, SetTimer):
        after, limit, backward = history_columns(change.history_range)
        constraints = constraints_text(change.constraints)
        found = {
            "at": change.at,
            "after": _seconds(change.after),
            "args": change.args,
            "trace": trace_context or None,
            "timeout": _seconds(change.step_timeout),
            "history_after": after,
            "history_limit": limit,
            "history_backward": backward,
            "constraints": constraints and msgspec.Raw(constraints),
        }
        column |= {key: value for key, value in found.items() if value is not None}
    return column


def _seconds(value: dt.timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def constraints_of(column: Mapping[str, Any]) -> Constraints:
    order, run_at = column.get("order"), column.get("run_at")
    return Constraints(
        run_at=None if run_at is None else instant_of(run_at),
        order=None if order is None else Order(order[0], Version(tuple(order[1]))),
        gates=column.get("gates", {}),
        priority=column.get("priority", PRIORITY_DEFAULT),
        hold=GateHold(column.get("hold", GateHold.TASK)),
    )


def options_text(options: JobOptions | None) -> bytes | None:
    """Return what a process of a job has of its own as JSON; None where it is nothing."""
    if options is None or options == NO_OPTIONS:
        return None
    column = msgspec.to_builtins(options)
    return _encode({name: it for name, it in column.items() if it is not None and it is not False})


def part_of(column: Sequence[Any]) -> Part:
    """Return the part of the column of ``priv/functions/jobs/leaders/build_job_part.sql``."""
    led_by, slot, namespace, leader_id, node, options = column
    return Part(
        led_by=None if led_by is None else Leadership(led_by),
        leader=None if leader_id is None else ProcessKey(slot, namespace, leader_id),
        node=node,
        options=msgspec.convert(options, JobOptions) if options else NO_OPTIONS,
    )


def history_columns(wanted: HistoryRange | None) -> tuple[int | None, int | None, bool | None]:
    """Return after, limit and backward of a range; three Nones where none was asked for."""
    if wanted is None:
        return None, None, None
    return wanted.after, wanted.limit, wanted.direction is Direction.BACKWARD


def history_range(
    after: int | None,
    limit: int | None,
    backward: bool | None,  # noqa: FBT001  a column
) -> HistoryRange | None:
    if backward is None:
        return None
    direction = Direction.BACKWARD if backward else Direction.FORWARD
    return HistoryRange(after=after or 0, limit=limit, direction=direction)


def time_spent(microseconds: Sequence[int]) -> TimeSpent:
    spent = (count * _MICROSECOND for count in microseconds)
    return TimeSpent(**dict(zip(_STATES, spent, strict=True)))


def order_wait(column: Sequence[Any]) -> OrderWait:
    """Return the task of a smaller version, as ``priv/functions/gates/causes`` names it."""
    key, version, process_id, task_id, smaller, status = column
    return OrderWait(
        order=Order(key, Version(tuple(version))),
        process_id=process_id,
        task_id=task_id,
        version=Version(tuple(smaller)),
        status=TaskStatus(status),
    )


def timing_columns(timing: Timing) -> dict[str, Any]:
    columns = dict.fromkeys(TIMES_COLUMNS) | {
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
    after, limit, backward = history_columns(request.history_range)
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


def _request_of(key: ScheduleKey, target: Target) -> tuple[Request, str, str]:
    """Return what each run asks for, but for the process; and the target's two columns.

    The key of the request stands for any: a fingerprint does not tell processes apart.
    """
    common: dict[str, Any] = {
        "key": process_key(key.namespace, key.schedule_id),
        "caller_context": target.caller_context,
    }
    if isinstance(target, JobTarget):
        graph = StartNodes(nodes=target.nodes, timeout=target.timeout, schedule_id=key.schedule_id)
        request = Request(
            task_type=TaskType.INIT,
            args=encode_graph(graph),
            metadata=target.metadata,
            led_by=Leadership.ENGINE,
            **common,
        )
        return request, JOB, target.template
    common |= {
        "args": target.args,
        "history_range": target.history_range,
        "constraints": target.constraints,
    }
    if isinstance(target, StartTarget):
        request = Request(task_type=TaskType.INIT, metadata=target.metadata, **common)
        return request, START, target.template
    return Request(task_type=target.task_type, **common), target.task_type, target.process_id


def times_of(cron: str | None, time_zone: str, every: dt.timedelta, anchor: dt.datetime) -> Times:
    return IntervalTimes(every, anchor) if cron is None else CronTimes(cron, time_zone)


def target_of(  # noqa: PLR0913, PLR0917  columns
    target: str,
    target_id: str,
    args: bytes | None,
    caller_context: Mapping[str, str] | None,
    metadata: Mapping[str, Any] | None,
    after: int | None,
    limit: int | None,
    backward: bool | None,  # noqa: FBT001  # a column of a row
    constraints: Mapping[str, Any] | None,
) -> Target:
    """Return the target of nine columns; ``args`` are None in lists."""
    common: dict[str, Any] = {"caller_context": caller_context or {}}
    if target == JOB:
        graph = StartNodes(nodes=()) if args is None else decode_graph(args)
        return JobTarget(
            nodes=graph.nodes,
            template=target_id,
            timeout=graph.timeout,
            metadata=metadata,
            **common,
        )
    common |= {
        "args": args or b"",
        "history_range": history_range(after, limit, backward),
        "constraints": None if constraints is None else constraints_of(constraints),
    }
    if target == START:
        return StartTarget(template=target_id, metadata=metadata, **common)
    return CallTarget(task_type=TaskType(target), process_id=target_id, **common)
