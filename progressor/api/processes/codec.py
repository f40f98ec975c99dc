"""Requests of ProcessService, from protobuf to domain.

Each function reports everything that is wrong with its message at once, as
`errors.InvalidRequestError`. Start, Call and Notify are the hot ones: a field that was not sent
costs no more than the look that finds it absent.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    caller_context_from_wire,
    check_id,
    check_namespace_name,
    check_payload,
    idempotency_key_from_wire,
    instant_from_wire,
    key_from_wire,
    metadata_from_wire,
    page_size_from_wire,
    process_status_from_wire,
)
from progressor.api.processes.wait_codec import CAUSE_FROM_WIRE
from progressor.domain.processes.admission import Request
from progressor.domain.processes.event import WHOLE_HISTORY, HistoryRange
from progressor.domain.processes.process import ProcessKey, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views.process import ProcessQuery
from progressor.domain.views.wait import Cause
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire import fields as wire

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
    key = key_from_wire(message.namespace, message.process_id, violations)
    check_payload(message.args, "args", payload_bytes_max, violations)
    pairs = message.caller_context
    caller_context = caller_context_from_wire(pairs, violations) if pairs else {}
    idempotency_key = idempotency_key_from_wire(message.idempotency_key, violations)
    history_range, metadata, constraints = None, None, None
    if message.HasField("history_range"):
        history_range = _history_range_of(message.history_range, violations)
    if not isinstance(message, process_service_pb2.RepairRequest) and message.HasField(
        "constraints"
    ):
        constraints = violations.attempt(
            wire.constraints_from_wire, message.constraints, "constraints"
        )
    if isinstance(message, process_service_pb2.StartRequest) and message.HasField("metadata"):
        metadata = metadata_from_wire(message.metadata, "metadata", violations)
    violations.raise_any()
    is_accept_only = isinstance(message, process_service_pb2.NotifyRequest) or message.accept_only
    return Request(
        key=key,
        task_type=task_type,
        args=message.args,
        caller_context=caller_context,
        trace_context=trace_context,
        idempotency_key=idempotency_key,
        history_range=history_range,
        metadata=metadata,
        waits=not is_accept_only,
        constraints=constraints,
    )


def key_of_request(message: Keyed) -> ProcessKey:
    """Return the process that a SimpleRepair or a Remove is about."""
    violations = Violations()
    key = key_from_wire(message.namespace, message.process_id, violations)
    violations.raise_any()
    return key


def get_from_wire(message: process_service_pb2.GetRequest) -> Reading:
    """Return a Get; without a range, of the whole history."""
    violations = Violations()
    key = key_from_wire(message.namespace, message.process_id, violations)
    history_range: HistoryRange | None = WHOLE_HISTORY
    if message.HasField("history_range"):
        history_range = _history_range_of(message.history_range, violations)
    violations.raise_any()
    return Reading(
        key=key,
        history_range=history_range or WHOLE_HISTORY,
        await_init=message.await_init,
    )


def trace_from_wire(message: process_service_pb2.TraceRequest) -> Tracing:
    """Return a Trace."""
    violations = Violations()
    key = key_from_wire(message.namespace, message.process_id, violations)
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.task_of_token(message.page_token, violations)
    violations.raise_any()
    return Tracing(key=key, after=after, limit=limit)


def list_from_wire(message: process_service_pb2.ListRequest) -> ProcessQuery:
    """Return a List; without a namespace it is of all."""
    violations = Violations()
    if message.namespace:
        check_namespace_name(message.namespace, "namespace", violations)
    statuses = _statuses_of(message.statuses, violations)
    created_from, created_to, metadata = None, None, None
    if message.HasField("created_from"):
        created_from = instant_from_wire(message.created_from, "created_from", violations)
    if message.HasField("created_to"):
        created_to = instant_from_wire(message.created_to, "created_to", violations)
    if message.HasField("metadata"):
        metadata = metadata_from_wire(message.metadata, "metadata", violations)
    if created_from is not None and created_to is not None and created_from > created_to:
        violations.add("created_to", "is before created_from")
    causes = _causes_of(message.causes, violations)
    page_size = page_size_from_wire(message.page_size, violations)
    before = page_tokens.process_of_token(
        message.page_token, violations, namespace=message.namespace
    )
    violations.raise_any()
    return ProcessQuery(
        namespace=message.namespace,
        statuses=statuses,
        created_from=created_from,
        created_to=created_to,
        metadata=metadata,
        page_size=page_size,
        before=before,
        causes=causes,
    )


def task_from_wire(
    message: process_service_pb2.AwaitTaskRequest | process_service_pb2.CancelRequest,
) -> NamedTask:
    """Return the task that an AwaitTask or a Cancel is about."""
    violations = Violations()
    key = key_from_wire(message.namespace, message.process_id, violations)
    task: int | str = message.idempotency_key
    match message.WhichOneof("task"):
        case "task_id":
            task = message.task_id
            if task < TASK_ID_MIN:
                violations.add("task_id", f"{task} is below {TASK_ID_MIN}")
        case "idempotency_key":
            check_id(message.idempotency_key, "idempotency_key", violations)
        case _:
            violations.add("task", "is neither a task_id nor an idempotency_key")
    violations.raise_any()
    return NamedTask(key=key, task=task)


def _history_range_of(
    message: types_pb2.HistoryRange, violations: Violations
) -> HistoryRange | None:
    return violations.attempt(wire.history_range_from_wire, message, "history_range")


def _statuses_of(numbers: Iterable[int], violations: Violations) -> tuple[ProcessStatus, ...]:
    statuses: dict[ProcessStatus, None] = {}
    takes_any = False
    for index, number in enumerate(numbers):
        status = process_status_from_wire(number, f"statuses[{index}]", violations)
        takes_any = takes_any or number == types_pb2.PROCESS_STATUS_UNSPECIFIED
        if status is not None:
            statuses[status] = None
    return () if takes_any else tuple(statuses)


def _causes_of(numbers: Iterable[int], violations: Violations) -> tuple[type[Cause], ...]:
    causes: dict[type[Cause], None] = {}
    for index, number in enumerate(numbers):
        cause = CAUSE_FROM_WIRE.get(number)
        if cause is None:
            violations.add(f"causes[{index}]", f"{number} is not a cause of waiting")
        else:
            causes[cause] = None
    return tuple(causes)
