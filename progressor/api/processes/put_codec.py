"""PutRequest, from protobuf to domain: a process to be imported as it is."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from progressor.api.calls.validation import Violations, check_id, read_key, read_payload
from progressor.domain.processes.admission import Import
from progressor.domain.processes.event import NewEvent
from progressor.domain.processes.intent import SetTimer
from progressor.domain.processes.process import ProcessStatus
from progressor.v1 import process_service_pb2
from progressor.wire import fields as wire
from progressor.wire import processes as process_wire
from progressor.wire.shapes import UNSENT, Field, Shape, read_each

_IMPORTED_STATUSES = frozenset({ProcessStatus.RUNNING, ProcessStatus.ERROR, ProcessStatus.FINISHED})
_STATUS_OF: Mapping[str, ProcessStatus] = {
    "detail": ProcessStatus.ERROR,
    "corrupted_by_type": ProcessStatus.ERROR,
    "result": ProcessStatus.FINISHED,
}
"""The status with which alone a field may be given."""


def put_from_wire(
    message: process_service_pb2.PutRequest,
    trace_context: Mapping[str, str],
    *,
    payload_bytes_max: int,
) -> Import:
    """Return a Put."""
    put = _PUT.read(message, context=payload_bytes_max)
    return dataclasses.replace(
        put,
        detail=message.detail if put.status is ProcessStatus.ERROR else None,
        result=message.result if put.status is ProcessStatus.FINISHED else None,
        trace_context=trace_context,
    )


def _status_of(
    message: process_service_pb2.PutRequest, path: str, _context: object
) -> ProcessStatus:
    status = process_wire.PROCESS_STATUS_FROM_WIRE.get(message.status)
    if status is None or status not in _IMPORTED_STATUSES:
        given = message.status if status is None else status.value
        wire.refuse(f"{path}status", f"must be running, error or finished, got {given}")
    return status


def _detail_of(message: process_service_pb2.PutRequest, path: str, bytes_max: int) -> str:
    violations = Violations()
    if "\0" in message.detail:
        violations.add(f"{path}detail", wire.NUL)
    violations.attempt(wire.check_payload, message.detail.encode(), f"{path}detail", bytes_max)
    violations.raise_any()
    return message.detail


def _history_of(
    message: process_service_pb2.PutRequest, path: str, bytes_max: int
) -> tuple[NewEvent, ...]:
    events = read_each(
        enumerate(message.history), process_wire.new_event_from_wire, f"{path}history", bytes_max
    )
    return tuple(events.values())


def _timer_of(
    message: process_service_pb2.PutRequest, path: str, bytes_max: int
) -> SetTimer | None:
    if not message.HasField("timer"):
        return None
    violations, status = Violations(), process_wire.PROCESS_STATUS_FROM_WIRE.get(message.status)
    if status in _IMPORTED_STATUSES and status is not ProcessStatus.RUNNING:
        violations.add(f"{path}timer", _only_with(ProcessStatus.RUNNING, status))
    if message.timer.HasField("constraints"):
        violations.add(f"{path}timer.constraints", "must not be set: they cannot be imported")
    timer = violations.attempt(
        process_wire.set_timer_from_wire, message.timer, f"{path}timer", bytes_max
    )
    violations.raise_any()
    return timer


def _only_with(wanted: ProcessStatus, status: object) -> str:
    return f"must only be set with status {wanted}, got status {status}"


def _check_all(put: Mapping[str, Any], path: str, _context: object) -> None:
    violations, status = Violations(), put.get("status")
    for field, wanted in _STATUS_OF.items() if status is not None else ():
        if put.get(field) and status is not wanted:
            violations.add(f"{path}{field}", _only_with(wanted, status))
    violations.raise_any()


_PUT = Shape(
    Import,
    process_service_pb2.PutRequest,
    _check_all,
    key=Field(read=read_key()),
    status=Field(read=_status_of),
    detail=Field(read=_detail_of),
    aux_state=read_payload("aux_state"),
    history=Field(read=_history_of),
    timer=Field(read=_timer_of),
    result=read_payload("result"),
    idempotency_key=check_id,
    trace_context=UNSENT,
)
