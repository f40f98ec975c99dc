"""PutRequest, from protobuf to domain: a process to be imported as it is."""

from collections.abc import Iterable, Mapping

from progressor.api.calls.validation import (
    Violations,
    check_payload,
    check_text,
    idempotency_key_from_wire,
    instant_from_wire,
    key_from_wire,
    metadata_from_wire,
    process_status_from_wire,
)
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.v1 import process_service_pb2, types_pb2
from progressor.wire import fields as wire

_IMPORTED_STATUSES = frozenset({ProcessStatus.RUNNING, ProcessStatus.ERROR, ProcessStatus.FINISHED})


def put_from_wire(
    message: process_service_pb2.PutRequest,
    trace_context: Mapping[str, str],
    *,
    payload_bytes_max: int,
) -> Import:
    """Return a Put."""
    violations = Violations()
    key = key_from_wire(message.namespace, message.process_id, violations)
    status = _imported_status_of(message.status, violations)
    previous = process_status_from_wire(message.previous_status, "previous_status", violations)
    broken_by = _task_type_of(message.corrupted_by_type, violations)
    _check_put_fits(message, status, violations)
    check_text(message.detail, "detail", payload_bytes_max, violations)
    check_payload(message.aux_state, "aux_state", payload_bytes_max, violations)
    check_payload(message.result, "result", payload_bytes_max, violations)
    metadata, created_at, status_changed_at = None, None, None
    if message.HasField("metadata"):
        metadata = metadata_from_wire(message.metadata, "metadata", violations)
    if message.HasField("created_at"):
        created_at = instant_from_wire(message.created_at, "created_at", violations)
    if message.HasField("status_changed_at"):
        status_changed_at = instant_from_wire(
            message.status_changed_at, "status_changed_at", violations
        )
    history = _history_of(message.history, payload_bytes_max, violations)
    timer = _timer_of(message, payload_bytes_max, violations)
    idempotency_key = idempotency_key_from_wire(message.idempotency_key, violations)
    violations.raise_any()
    assert status is not None, "a status that cannot be imported is a violation"
    return Import(
        key=key,
        status=status,
        previous_status=previous,
        detail=message.detail if status is ProcessStatus.ERROR else None,
        corrupted_by_type=broken_by,
        aux_state=message.aux_state,
        metadata=metadata,
        created_at=created_at,
        status_changed_at=status_changed_at,
        history=history,
        timer=timer,
        result=message.result if status is ProcessStatus.FINISHED else None,
        idempotency_key=idempotency_key,
        trace_context=trace_context,
    )


def _imported_status_of(number: int, violations: Violations) -> ProcessStatus | None:
    status = wire.PROCESS_STATUS_FROM_WIRE.get(number)
    if status not in _IMPORTED_STATUSES:
        given = number if status is None else status.value
        violations.add("status", f"{given} is not running, error or finished")
        return None
    return status


def _task_type_of(number: int, violations: Violations) -> TaskType | None:
    task_type = wire.TASK_TYPE_FROM_WIRE.get(number)
    if task_type is None and number != types_pb2.TASK_TYPE_UNSPECIFIED:
        violations.add("corrupted_by_type", f"{number} is not a task type")
    return task_type


def _check_put_fits(
    message: process_service_pb2.PutRequest, status: ProcessStatus | None, violations: Violations
) -> None:
    if status is None:
        return
    belongs = (
        ("detail", bool(message.detail), ProcessStatus.ERROR),
        ("corrupted_by_type", bool(message.corrupted_by_type), ProcessStatus.ERROR),
        ("timer", message.HasField("timer"), ProcessStatus.RUNNING),
        ("result", bool(message.result), ProcessStatus.FINISHED),
    )
    for field, is_given, wanted in belongs:
        if is_given and status is not wanted:
            violations.add(field, f"goes only with status {wanted.value}, not {status.value}")


def _history_of(
    messages: Iterable[types_pb2.NewEvent], payload_bytes_max: int, violations: Violations
) -> tuple[NewEvent, ...]:
    events = (
        violations.attempt(
            wire.new_event_from_wire, message, f"history[{index}]", payload_bytes_max
        )
        for index, message in enumerate(messages)
    )
    return tuple(event for event in events if event is not None)


def _timer_of(
    message: process_service_pb2.PutRequest, payload_bytes_max: int, violations: Violations
) -> SetTimer | None:
    if not message.HasField("timer"):
        return None
    if message.timer.HasField("constraints"):
        violations.add("timer.constraints", "cannot be imported")
    return violations.attempt(wire.set_timer_from_wire, message.timer, "timer", payload_bytes_max)
