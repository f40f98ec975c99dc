"""Requests of ProcessService, each with all its violations at once as `errors.InvalidRequestError`.

Start, Call and Notify are hot: a field that was not sent costs no more than to find it absent.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from progressor.api.calls import page_tokens
from progressor.api.calls.filters import FILTER, check_failure_id, if_given
from progressor.api.calls.validation import (
    PAGE_SIZE,
    Key,
    PageSize,
    check_id,
    check_namespace_name,
    read_key,
    read_payload,
    text_of,
)
from progressor.api.processes.responses import CAUSE_FROM_WIRE
from progressor.domain.processes.admission import Import, Request
from progressor.domain.processes.event import WHOLE_HISTORY, Direction, HistoryRange, NewEvent
from progressor.domain.processes.intent import TIMERS_MAX, SetTimer
from progressor.domain.processes.process import (
    EXACT_MAX_CEILING,
    EXACT_MAX_DEFAULT,
    ProcessKey,
    ProcessStatus,
)
from progressor.domain.processes.task import TaskType
from progressor.domain.views.bulk import OPERATIONS
from progressor.domain.views.failure import FailureQuery
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery
from progressor.domain.views.wait import Cause
from progressor.v1 import process_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from progressor.wire.processes import check_caller_context, check_not_reserved
from progressor.wire.shapes import UNSENT, Field, Shape, Violations, between, read_each

TASK_ID_MIN = 1
END_REASON_BYTES_MAX = 1024

Admitted = pb.StartRequest | pb.CallRequest | pb.NotifyRequest | pb.RepairRequest
Keyed = pb.RetryRequest | pb.SimpleRepairRequest | pb.RemoveRequest | pb.AwaitProcessRequest
NamesTask = pb.AwaitTaskRequest | pb.CancelRequest

_KEY = read_key()
_IMPORTED_STATUSES = frozenset({ProcessStatus.RUNNING, ProcessStatus.ERROR, ProcessStatus.FINISHED})
_STATUS_OF: Mapping[str, ProcessStatus] = {
    "detail": ProcessStatus.ERROR,
    "corrupted_by_type": ProcessStatus.ERROR,
    "result": ProcessStatus.FINISHED,
}
"""The status with which alone a field may be given."""


def request_from_wire(
    message: Admitted,
    task_type: TaskType,
    trace_context: Mapping[str, str],
    *,
    payload_bytes_max: int,
) -> Request:
    """Return a Start, Call, Notify or Repair as the request for a task of `task_type`."""
    violations = Violations()
    key = violations.attempt(_KEY, message, "", None)
    if message.namespace == OPERATIONS:
        violations.attempt(check_not_reserved, message.namespace, "namespace")
    if len(message.args) > payload_bytes_max:
        violations.add("args", wire.too_large(len(message.args), payload_bytes_max))
    if message.caller_context:
        violations.attempt(check_caller_context, message.caller_context, "caller_context")
    if message.idempotency_key:
        violations.attempt(check_id, message.idempotency_key, "idempotency_key")
    history_range, metadata, constraints = None, None, None
    if message.HasField("history_range"):
        history_range = violations.attempt(
            process_wire.history_range_from_wire, message.history_range, "history_range"
        )
    if not isinstance(message, pb.RepairRequest) and message.HasField("constraints"):
        constraints = violations.attempt(
            process_wire.constraints_from_wire, message.constraints, "constraints"
        )
    if isinstance(message, pb.StartRequest) and message.HasField("metadata"):
        metadata = violations.attempt(wire.struct_to_mapping, message.metadata, "metadata")
    violations.raise_any()
    assert key is not None, "a key that cannot be read is a violation"
    is_accept_only = isinstance(message, pb.NotifyRequest) or message.accept_only
    return Request(
        key=key,
        task_type=task_type,
        args=message.args,
        caller_context=dict(message.caller_context),
        trace_context=trace_context,
        idempotency_key=message.idempotency_key or None,
        history_range=history_range,
        metadata=metadata,
        waits=not is_accept_only,
        constraints=constraints,
    )


def key_of_request(message: Keyed) -> ProcessKey:
    return _KEY(message, "", None)


def _history_range_of(message: pb.GetRequest, path: str, _context: object) -> HistoryRange:
    if not message.HasField("history_range"):
        return WHOLE_HISTORY
    return process_wire.history_range_from_wire(message.history_range, f"{path}history_range")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A Get: which process, which part of its history, and whether to wait until it is made."""

    key: Key
    history_range: Annotated[HistoryRange, Field(read=_history_range_of)]
    await_init: bool


def _direction_of(message: pb.TraceRequest, path: str, _context: object) -> Direction:
    return process_wire.direction_from_wire(message.direction, f"{path}direction")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """A Trace: at most `limit` tasks of a process behind the task `after`, in a direction."""

    key: Key
    after: Annotated[int, page_tokens.TASKS.field]
    limit: PageSize
    direction: Annotated[Direction, Field(read=_direction_of)]


def _end_reason(message: pb.TerminateRequest, path: str, _context: object) -> str:
    if not message.reason.strip():
        wire.refuse(f"{path}reason", "must not be empty")
    text_of(END_REASON_BYTES_MAX)(message.reason, f"{path}reason")
    return message.reason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Termination:
    """A Terminate: which process, and why it is ended."""

    key: Key
    reason: Annotated[str, Field(read=_end_reason)]


def _task_of(message: NamesTask, path: str, _context: object) -> int | str:
    match message.WhichOneof("task"):
        case "task_id":
            if message.task_id < TASK_ID_MIN:
                wire.refuse(
                    f"{path}task_id", f"must be at least {TASK_ID_MIN}, got {message.task_id}"
                )
        case "idempotency_key":
            check_id(message.idempotency_key, f"{path}idempotency_key")
        case _:
            wire.refuse(f"{path}task", "must be a task_id or an idempotency_key")
    return message.idempotency_key or message.task_id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamedTask:
    """What an AwaitTask or a Cancel is about: a task by its id or by its idempotency key."""

    key: Key
    task: Annotated[int | str, Field(read=_task_of)]


_NAMED_TASK: Shape[NamedTask, NamesTask] = Shape(NamedTask, pb.AwaitTaskRequest)


def task_from_wire(message: NamesTask) -> NamedTask:
    return _NAMED_TASK.read(message)


def _causes_of(message: pb.ListRequest, path: str, _context: object) -> tuple[type[Cause], ...]:
    causes = read_each(enumerate(message.causes), _cause_of, f"{path}causes", None)
    return tuple(dict.fromkeys(causes.values()))


def _cause_of(number: int, field: str, _context: object) -> type[Cause]:
    cause = CAUSE_FROM_WIRE.get(number)
    if cause is None:
        wire.refuse(field, f"unknown wait cause {number}")
    return cause


def _check_listing(query: Mapping[str, Any], path: str, _context: object) -> None:
    before, listed = query.get("before"), query.get("filter")
    if before is not None and listed is not None and listed.namespace not in {"", before[1]}:
        wire.refuse(f"{path}page_token", "must be a page token that this list returned")


_LISTING = Shape(
    ProcessQuery,
    pb.ListRequest,
    _check_listing,
    filter=FILTER,
    page_size=PAGE_SIZE,
    before=page_tokens.PROCESSES.field,
    causes=Field(read=_causes_of),
)


def _exact_max_of(message: pb.CountRequest, path: str, _context: object) -> int:
    between(0, EXACT_MAX_CEILING)(message.exact_max, f"{path}exact_max")
    return message.exact_max or EXACT_MAX_DEFAULT


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """A Count: of what, and up to how many one by one."""

    filter: ProcessFilter
    exact_max: Annotated[int, Field(read=_exact_max_of)]


_FAILURES = Shape(
    FailureQuery,
    pb.ListFailuresRequest,
    namespace=if_given(check_namespace_name),
    failure_id=if_given(check_failure_id),
    page_size=PAGE_SIZE,
    before=page_tokens.FAILURES.field,
    seen=UNSENT,
)

get_from_wire = Shape(Reading, pb.GetRequest).read
termination_from_wire = Shape(Termination, pb.TerminateRequest).read
trace_from_wire = Shape(Tracing, pb.TraceRequest).read
list_from_wire = _LISTING.read
count_from_wire = Shape(Counting, pb.CountRequest, filter=FILTER).read
failures_from_wire = _FAILURES.read


def put_from_wire(
    message: pb.PutRequest, trace_context: Mapping[str, str], *, payload_bytes_max: int
) -> Import:
    """Return a Put: a process to be imported as it is."""
    put = _PUT.read(message, context=payload_bytes_max)
    return dataclasses.replace(
        put,
        detail=message.detail if put.status is ProcessStatus.ERROR else None,
        result=message.result if put.status is ProcessStatus.FINISHED else None,
        trace_context=trace_context,
    )


def _status_of(message: pb.PutRequest, path: str, _context: object) -> ProcessStatus:
    status = process_wire.PROCESS_STATUS_FROM_WIRE.get(message.status)
    if status is None or status not in _IMPORTED_STATUSES:
        given = message.status if status is None else status.value
        wire.refuse(f"{path}status", f"must be running, error or finished, got {given}")
    return status


def _detail_of(message: pb.PutRequest, path: str, bytes_max: int) -> str:
    violations = Violations()
    if "\0" in message.detail:
        violations.add(f"{path}detail", wire.NUL)
    violations.attempt(wire.check_payload, message.detail.encode(), f"{path}detail", bytes_max)
    violations.raise_any()
    return message.detail


def _history_of(message: pb.PutRequest, path: str, bytes_max: int) -> tuple[NewEvent, ...]:
    events = read_each(
        enumerate(message.history), process_wire.new_event_from_wire, f"{path}history", bytes_max
    )
    return tuple(events.values())


def _timer_of(message: pb.PutRequest, path: str, bytes_max: int) -> SetTimer | None:
    if not message.HasField("timer"):
        return None
    violations = Violations()
    timer = _imported(message, message.timer, f"{path}timer", bytes_max, violations)
    violations.raise_any()
    return timer


def _timers_of(message: pb.PutRequest, path: str, bytes_max: int) -> dict[str, SetTimer]:
    violations, field, timers = Violations(), f"{path}named_timers", {}
    count = len(message.named_timers) + message.HasField("timer")
    if count > TIMERS_MAX:
        violations.add(field, f"a process can have at most {TIMERS_MAX} timers, got {count}")
    else:
        for name, each in sorted(message.named_timers.items()):
            violations.attempt(process_wire.check_timer_name, name, f"{field}[{name!r}]")
            timer = _imported(message, each, f"{field}[{name!r}]", bytes_max, violations)
            if timer is not None:
                timers[name] = timer
    violations.raise_any()
    return timers


def _imported(
    message: pb.PutRequest,
    timer: types_pb2.SetTimer,
    field: str,
    bytes_max: int,
    violations: Violations,
) -> SetTimer | None:
    status = process_wire.PROCESS_STATUS_FROM_WIRE.get(message.status)
    if status in _IMPORTED_STATUSES and status is not ProcessStatus.RUNNING:
        violations.add(field, _only_with(ProcessStatus.RUNNING, status))
    if timer.HasField("constraints"):
        violations.add(f"{field}.constraints", "must not be set: they cannot be imported")
    return violations.attempt(process_wire.set_timer_from_wire, timer, field, bytes_max)


def _only_with(wanted: ProcessStatus, status: object) -> str:
    return f"must only be set with status {wanted}, got status {status}"


def _check_put(put: Mapping[str, Any], path: str, _context: object) -> None:
    violations, status = Violations(), put.get("status")
    if put.get("key") is not None:
        violations.attempt(check_not_reserved, put["key"].namespace, f"{path}namespace")
    for field, wanted in _STATUS_OF.items() if status is not None else ():
        if put.get(field) and status is not wanted:
            violations.add(f"{path}{field}", _only_with(wanted, status))
    violations.raise_any()


_PUT = Shape(
    Import,
    pb.PutRequest,
    _check_put,
    key=Field(read=_KEY),
    status=Field(read=_status_of),
    detail=Field(read=_detail_of),
    aux_state=read_payload("aux_state"),
    history=Field(read=_history_of),
    timer=Field(read=_timer_of),
    timers=Field(read=_timers_of),
    result=read_payload("result"),
    idempotency_key=check_id,
    trace_context=UNSENT,
    state_version=process_wire.check_state_version,
)
