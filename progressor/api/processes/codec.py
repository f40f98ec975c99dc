"""Requests of ProcessService, from protobuf to domain.

Each function reports everything that is wrong with its message at once, as
`errors.InvalidRequestError`. Start, Call and Notify are the hot ones: a field that was not sent
costs no more than the look that finds it absent.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    PAGE_SIZE,
    Violations,
    check_caller_context,
    check_id,
    check_namespace_name,
    read_key,
)
from progressor.api.processes.wait_codec import CAUSE_FROM_WIRE
from progressor.domain.processes.admission import Request
from progressor.domain.processes.event import WHOLE_HISTORY, HistoryRange
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views.process import ProcessQuery
from progressor.domain.views.wait import Cause
from progressor.v1 import process_service_pb2
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from progressor.wire.shapes import Field, Shape, any_of, read_each

TASK_ID_MIN = 1

Admitted = (
    process_service_pb2.StartRequest
    | process_service_pb2.CallRequest
    | process_service_pb2.NotifyRequest
    | process_service_pb2.RepairRequest
)
Keyed = process_service_pb2.SimpleRepairRequest | process_service_pb2.RemoveRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A Get: which process, which part of its history, and whether to wait until it is made."""

    key: ProcessKey
    history_range: HistoryRange
    await_init: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """A Trace: at most `limit` tasks of a process behind the task `after`."""

    key: ProcessKey
    after: int
    limit: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamedTask:
    """What an AwaitTask or a Cancel is about: a task by its id or by its idempotency key."""

    key: ProcessKey
    task: int | str


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
    if not isinstance(message, process_service_pb2.RepairRequest) and message.HasField(
        "constraints"
    ):
        constraints = violations.attempt(
            process_wire.constraints_from_wire, message.constraints, "constraints"
        )
    if isinstance(message, process_service_pb2.StartRequest) and message.HasField("metadata"):
        metadata = violations.attempt(wire.struct_to_mapping, message.metadata, "metadata")
    violations.raise_any()
    assert key is not None, "a key that cannot be read is a violation"
    is_accept_only = isinstance(message, process_service_pb2.NotifyRequest) or message.accept_only
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
    """Return the process that a SimpleRepair or a Remove is about."""
    return _KEY(message, "", None)


def task_from_wire(
    message: process_service_pb2.AwaitTaskRequest | process_service_pb2.CancelRequest,
) -> NamedTask:
    """Return the task that an AwaitTask or a Cancel is about."""
    return _NAMED_TASK.read(message)


def _task_of(
    message: process_service_pb2.AwaitTaskRequest | process_service_pb2.CancelRequest,
    path: str,
    _context: object,
) -> int | str:
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


def _history_range_of(
    message: process_service_pb2.GetRequest, path: str, _context: object
) -> HistoryRange:
    if not message.HasField("history_range"):
        return WHOLE_HISTORY
    return process_wire.history_range_from_wire(message.history_range, f"{path}history_range")


def _causes_of(
    message: process_service_pb2.ListRequest, path: str, _context: object
) -> tuple[type[Cause], ...]:
    causes = read_each(enumerate(message.causes), _cause_of, f"{path}causes", None)
    return tuple(dict.fromkeys(causes.values()))


def _cause_of(number: int, field: str, _context: object) -> type[Cause]:
    cause = CAUSE_FROM_WIRE.get(number)
    if cause is None:
        wire.refuse(field, f"unknown wait cause {number}")
    return cause


def _check_listing(query: Mapping[str, Any], path: str, _context: object) -> None:
    violations = Violations()
    created_from, created_to = query.get("created_from"), query.get("created_to")
    if created_from is not None and created_to is not None and created_from > created_to:
        violations.add(f"{path}created_to", "must not be before created_from")
    before = query.get("before")
    if before is not None and query.get("namespace") not in {"", before[1]}:
        violations.add(f"{path}page_token", "must be a page token that this list returned")
    violations.raise_any()


_KEY = read_key()
_NAMED_TASK: Shape[
    NamedTask, process_service_pb2.AwaitTaskRequest | process_service_pb2.CancelRequest
] = Shape(
    NamedTask,
    process_service_pb2.AwaitTaskRequest,
    key=Field(read=_KEY),
    task=Field(read=_task_of),
)
_READING = Shape(
    Reading,
    process_service_pb2.GetRequest,
    key=Field(read=_KEY),
    history_range=Field(read=_history_range_of),
)
_TRACING = Shape(
    Tracing,
    process_service_pb2.TraceRequest,
    key=Field(read=_KEY),
    after=page_tokens.TASKS.field,
    limit=PAGE_SIZE,
)
_LISTING = Shape(
    ProcessQuery,
    process_service_pb2.ListRequest,
    _check_listing,
    namespace=lambda name, field: check_namespace_name(name, field) if name else None,
    statuses=any_of(ProcessStatus, "statuses"),
    page_size=PAGE_SIZE,
    before=page_tokens.PROCESSES.field,
    causes=Field(read=_causes_of),
)

get_from_wire = _READING.read
trace_from_wire = _TRACING.read
list_from_wire = _LISTING.read
