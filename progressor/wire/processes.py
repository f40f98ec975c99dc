"""Processes, events, timers, constraints and policies between protobuf and `domain`.

An invalid field raises `errors.InvalidRequestError`, which names it by the path that the caller
gave. A message in another one is filled in place: ten events take 9 µs, and 21 µs built apart
(2026-11-21, 2-core reference machine).
"""

import datetime as dt
import math
from collections.abc import Mapping, Sequence

from progressor.domain.gates.constraint import (
    CAPACITY_MAX,
    GATES_MAX,
    PRIORITY_MAX,
    Constraints,
    GateHold,
    Order,
    Version,
)
from progressor.domain.processes.event import Direction, Event, HistoryRange, NewEvent
from progressor.domain.processes.intent import TIMER_NAME_BYTES_MAX, SetTimer
from progressor.domain.processes.policy import (
    REASON_BYTES_MAX,
    REASONS_MAX,
    RetryPolicy,
    ZombiePolicy,
)
from progressor.domain.processes.process import Process, ProcessStatus
from progressor.domain.processes.task import TaskType
from progressor.domain.views.bulk import OPERATIONS
from progressor.v1 import namespace_service_pb2 as namespaces_pb
from progressor.v1 import types_pb2
from progressor.wire import fields as wire
from progressor.wire.shapes import Field, Shape, Violations, between, enum_numbers, refuse_all

ATTEMPTS_MAX = 1_000_000
INTERVAL_MAX = dt.timedelta(days=365)
CALLER_CONTEXT_PAIRS_MAX = 64
CALLER_CONTEXT_BYTES_MAX = 8 * 1024

PROCESS_STATUS_TO_WIRE = enum_numbers(ProcessStatus, types_pb2.ProcessStatus.DESCRIPTOR)
PROCESS_STATUS_FROM_WIRE = {number: it for it, number in PROCESS_STATUS_TO_WIRE.items()}
TASK_TYPE_TO_WIRE = enum_numbers(TaskType, types_pb2.TaskType.DESCRIPTOR)
GATE_HOLD_TO_WIRE = enum_numbers(GateHold, types_pb2.GateHold.DESCRIPTOR)
_DIRECTION_FROM_WIRE: Mapping[int, Direction] = {
    types_pb2.DIRECTION_UNSPECIFIED: Direction.FORWARD,
    types_pb2.DIRECTION_FORWARD: Direction.FORWARD,
    types_pb2.DIRECTION_BACKWARD: Direction.BACKWARD,
}


def history_range_from_wire(message: types_pb2.HistoryRange, field: str) -> HistoryRange:
    limit = message.limit if message.HasField("limit") else None
    if message.after < 0:
        wire.refuse(f"{field}.after", f"must not be negative, got {message.after}")
    if limit is not None and not 0 <= limit <= wire.HISTORY_LIMIT_MAX:
        wire.refuse(f"{field}.limit", f"must be 0 to {wire.HISTORY_LIMIT_MAX}, got {limit}")
    direction = direction_from_wire(message.direction, f"{field}.direction")
    return HistoryRange(after=message.after, limit=limit, direction=direction)


def direction_from_wire(number: int, field: str) -> Direction:
    direction = _DIRECTION_FROM_WIRE.get(number)
    if direction is None:
        wire.refuse(field, f"unknown direction {number}")
    return direction


def new_event_from_wire(
    message: types_pb2.NewEvent, field: str, payload_bytes_max: int
) -> NewEvent:
    payload = message.payload
    if len(payload) > payload_bytes_max:
        wire.check_payload(payload, f"{field}.payload", payload_bytes_max)
    metadata, occurred_at = None, None
    if message.HasField("metadata"):
        metadata = wire.struct_to_mapping(message.metadata, f"{field}.metadata")
    if message.HasField("occurred_at"):
        occurred_at = wire.timestamp_to_datetime(message.occurred_at, f"{field}.occurred_at")
    return NewEvent(
        payload=payload,
        format_version=message.format_version,
        metadata=metadata,
        occurred_at=occurred_at,
    )


def fill_event(message: types_pb2.Event, event: Event) -> None:
    """Write a recorded event into an empty message."""
    message.event_id = event.event_id
    wire.fill_timestamp(message.occurred_at, event.occurred_at)
    message.payload = event.payload
    message.task_id = event.task_id
    if event.format_version:
        message.format_version = event.format_version
    if event.metadata is not None:
        wire.fill_struct(message.metadata, event.metadata)


def constraints_from_wire(message: types_pb2.Constraints, field: str) -> Constraints:
    return _CONSTRAINTS.read(message, f"{field}.")


def _version_of(message: types_pb2.Order, path: str, _context: object) -> Version:
    field, text = f"{path}version", message.version
    if len(text) > wire.ID_BYTES_MAX:
        wire.refuse(field, f"must be at most {wire.ID_BYTES_MAX} characters, got {len(text)}")
    try:
        return Version.parse(text)
    except ValueError as error:
        wire.refuse(field, str(error))


def _gates_of(message: types_pb2.Constraints, path: str, _context: object) -> dict[str, int | None]:
    violations, uses, field = Violations(), message.gates, f"{path}gates"
    if len(uses) > GATES_MAX:
        violations.add(field, wire.too_many(len(uses), GATES_MAX))
    gates: dict[str, int | None] = {}
    for index, use in enumerate(uses[:GATES_MAX]):
        place, gate = f"{field}[{index}]", use.gate
        capacity = use.capacity if use.HasField("capacity") else None
        for fault in wire.id_faults(gate):
            violations.add(f"{place}.gate", fault)
        if gate and gate in gates:
            violations.add(f"{place}.gate", f"gate {gate!r} is listed twice")
        if capacity is not None and not 0 <= capacity <= CAPACITY_MAX:
            violations.add(f"{place}.capacity", f"must be 0 to {CAPACITY_MAX}, got {capacity}")
        gates[gate] = capacity
    violations.raise_any()
    return gates


_CONSTRAINTS = Shape(
    Constraints,
    types_pb2.Constraints,
    order=Shape(
        Order,
        types_pb2.Order,
        key=lambda key, field: refuse_all(field, wire.id_faults(key)),
        version=Field(read=_version_of),
    ),
    gates=Field(read=_gates_of),
    priority=between(0, PRIORITY_MAX),
)


def check_not_reserved(namespace: str, field: str) -> None:
    if namespace == OPERATIONS:
        wire.refuse(field, f"must not be {OPERATIONS}, which only BulkService changes")


def check_caller_context(pairs: Mapping[str, str], field: str) -> None:
    """Refuse more pairs than are stored with a task."""
    violations = Violations()
    if len(pairs) > CALLER_CONTEXT_PAIRS_MAX:
        violations.add(field, wire.too_many(len(pairs), CALLER_CONTEXT_PAIRS_MAX))
    size = 0
    for name, value in pairs.items():
        size += len(name.encode()) + len(value.encode())
        if "\0" in name or "\0" in value:
            violations.add(f"{field}[{wire.shown(name)}]", wire.NUL)
    if size > CALLER_CONTEXT_BYTES_MAX:
        violations.add(field, wire.too_large(size, CALLER_CONTEXT_BYTES_MAX))
    violations.raise_any()


def check_timer_name(name: str, field: str) -> None:
    """Refuse a name that a timer cannot have; the timer without a name has none to check."""
    refuse_all(field, wire.id_faults(name, TIMER_NAME_BYTES_MAX))


def set_timer_from_wire(
    message: types_pb2.SetTimer, field: str, payload_bytes_max: int
) -> SetTimer:
    """Return a timer to be set; without an instant or a duration it is due at once."""
    wire.check_payload(message.args, f"{field}.args", payload_bytes_max)
    at, after = None, None
    if message.HasField("at"):
        at = wire.timestamp_to_datetime(message.at, f"{field}.at")
    else:
        after = wire.duration_to_timedelta(message.after, f"{field}.after")
        if not dt.timedelta(0) <= after <= wire.TIMER_AFTER_MAX:
            wire.refuse(
                f"{field}.after",
                f"must be 0 to {wire.TIMER_AFTER_MAX.days} days, got {wire.duration_text(after)}",
            )
    history_range, step_timeout = None, None
    if message.HasField("history_range"):
        history_range = history_range_from_wire(message.history_range, f"{field}.history_range")
    if message.HasField("step_timeout"):
        step_timeout = wire.duration_to_timedelta(message.step_timeout, f"{field}.step_timeout")
        if not wire.STEP_TIMEOUT_MIN <= step_timeout <= wire.STEP_TIMEOUT_MAX:
            wire.refuse(
                f"{field}.step_timeout",
                f"must be 1 ms to 1 day, got {wire.duration_text(step_timeout)}",
            )
    constraints = None
    if message.HasField("constraints"):
        constraints = _timer_constraints_of(message, f"{field}.constraints")
    return SetTimer(
        at=at,
        after=after,
        remove=message.remove,
        args=message.args,
        history_range=history_range,
        step_timeout=step_timeout,
        constraints=constraints,
    )


def _timer_constraints_of(message: types_pb2.SetTimer, field: str) -> Constraints:
    if message.remove:
        wire.refuse(field, "must not be set together with remove")
    constraints = constraints_from_wire(message.constraints, field)
    if constraints.run_at is not None:
        wire.refuse(f"{field}.run_at", "must not be set: a timer has an instant of its own")
    return constraints


def check_state_version(version: int, field: str) -> None:
    if version < 0:
        wire.refuse(field, f"must not be negative, got {version}")


def fill_process(message: types_pb2.Process, process: Process) -> None:
    """Write a process without its history into an empty message."""
    message.namespace = process.key.namespace
    message.process_id = process.key.process_id
    message.status = PROCESS_STATUS_TO_WIRE[process.status]
    message.aux_state = process.aux_state
    message.last_event_id = process.last_event_id
    wire.fill_timestamp(message.created_at, process.created_at)
    wire.fill_timestamp(message.status_changed_at, process.status_changed_at)
    if process.detail:
        message.detail = process.detail
    if process.metadata is not None:
        wire.fill_struct(message.metadata, process.metadata)
    if process.corrupted_by is not None:
        message.corrupted_by = process.corrupted_by
    if process.previous_status is not None:
        message.previous_status = PROCESS_STATUS_TO_WIRE[process.previous_status]
    if process.result:
        message.result = process.result
    if process.state_version:
        message.state_version = process.state_version
    if process.broken_at is not None:
        wire.fill_timestamp(message.broken_at, process.broken_at)
        message.failure_id = process.failure_id
        message.failure_reason = process.failure_reason


_ZOMBIE_POLICIES = enum_numbers(ZombiePolicy, namespaces_pb.ZombiePolicy.DESCRIPTOR)
ZOMBIE_POLICY_FROM_WIRE = {number: it for it, number in _ZOMBIE_POLICIES.items()}


def _check_coefficient(value: float, field: str) -> None:
    if not (math.isfinite(value) and value >= 1):
        wire.refuse(field, f"must be at least 1, got {value}")


def check_not_negative(value: dt.timedelta, field: str) -> None:
    if value < dt.timedelta(0):
        wire.refuse(field, f"must not be negative, got {wire.duration_text(value)}")


def _check_reasons(reasons: Sequence[str], field: str) -> None:
    violations = Violations()
    if len(reasons) > REASONS_MAX:
        violations.add(field, wire.too_many(len(reasons), REASONS_MAX))
    for index, reason in enumerate(reasons[:REASONS_MAX]):
        place, size = f"{field}[{index}]", len(reason.encode())
        if "\0" in reason:
            violations.add(place, wire.NUL)
        if size > REASON_BYTES_MAX:
            violations.add(place, wire.too_large(size, REASON_BYTES_MAX))
    violations.raise_any()


_INTERVAL = Field(check=between(dt.timedelta(0), INTERVAL_MAX), zero_is_default=True)
RETRY_POLICY = Shape(
    RetryPolicy,
    namespaces_pb.RetryPolicy,
    initial_interval=_INTERVAL,
    coefficient=_check_coefficient,
    interval_max=_INTERVAL,
    jitter=between(0, 1),
    attempts_max=between(1, ATTEMPTS_MAX),
    elapsed_max=Field(check=check_not_negative, zero_is_default=True),
    non_retryable_reasons=_check_reasons,
)
retry_policy_to_wire = RETRY_POLICY.message


def retry_policy_from_wire(message: namespaces_pb.RetryPolicy, field: str) -> RetryPolicy:
    """Return a policy; zeros take the defaults."""
    return RETRY_POLICY.read(message, f"{field}.")
