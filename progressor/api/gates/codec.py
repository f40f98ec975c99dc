"""Requests of GateService from protobuf to domain, and gates back."""

import dataclasses

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    Violations,
    check_id,
    check_namespace_name,
    page_size_from_wire,
)
from progressor.domain.gates.constraint import CAPACITY_MAX
from progressor.domain.gates.gate import Gate, GateHolder, GateView, GateWaiter
from progressor.v1 import gate_service_pb2, types_pb2
from progressor.wire import fields as wire

Keyed = gate_service_pb2.GetGateRequest | gate_service_pb2.DeleteGateRequest


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateKey:
    """What a GetGate or a DeleteGate is about."""

    namespace: str
    gate: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A ListGates: at most `limit` with keys above `after`."""

    namespace: str
    after: str
    limit: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A SetGate; revision 0: whatever it is at."""

    namespace: str
    gate: str
    capacity: int
    expected_revision: int


def list_from_wire(message: gate_service_pb2.ListGatesRequest) -> Listing:
    """Return a ListGates."""
    violations = Violations()
    check_namespace_name(message.namespace, "namespace", violations)
    limit = page_size_from_wire(message.page_size, violations)
    after = page_tokens.gate_of_token(message.page_token, violations)
    violations.raise_any()
    return Listing(namespace=message.namespace, after=after, limit=limit)


def key_of_request(message: Keyed) -> GateKey:
    """Return the gate that a GetGate or a DeleteGate is about."""
    violations = Violations()
    check_namespace_name(message.namespace, "namespace", violations)
    check_id(message.gate, "gate", violations)
    violations.raise_any()
    return GateKey(namespace=message.namespace, gate=message.gate)


def set_from_wire(message: gate_service_pb2.SetGateRequest) -> Setting:
    """Return a SetGate."""
    violations = Violations()
    check_namespace_name(message.namespace, "namespace", violations)
    check_id(message.gate, "gate", violations)
    if not message.HasField("capacity"):
        violations.add("capacity", "must be given")
    elif not 0 <= message.capacity <= CAPACITY_MAX:
        violations.add("capacity", f"{message.capacity} is not in 0 .. {CAPACITY_MAX}")
    if message.expected_revision < 0:
        violations.add("expected_revision", f"{message.expected_revision} is below 0")
    violations.raise_any()
    return Setting(
        namespace=message.namespace,
        gate=message.gate,
        capacity=message.capacity,
        expected_revision=message.expected_revision,
    )


def page_to_wire(gates: tuple[Gate, ...], *, page_size: int) -> gate_service_pb2.ListGatesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page = gates[:page_size]
    has_next = len(gates) > page_size
    return gate_service_pb2.ListGatesResponse(
        gates=map(gate_to_wire, page),
        next_page_token=page_tokens.token_of_gate(page[-1].gate) if has_next else "",
    )


def gate_to_wire(gate: Gate) -> gate_service_pb2.Gate:
    """Return a gate as a message."""
    return gate_service_pb2.Gate(
        namespace=gate.namespace,
        gate=gate.gate,
        capacity=gate.capacity,
        held=gate.held,
        waiting_count=gate.waiting_count,
        revision=gate.revision,
        created_at=wire.datetime_to_timestamp(gate.created_at),
        updated_at=wire.datetime_to_timestamp(gate.updated_at),
    )


def view_to_wire(view: GateView) -> gate_service_pb2.GetGateResponse:
    """Return a gate with who holds it and who waits for it as a message."""
    return gate_service_pb2.GetGateResponse(
        gate=gate_to_wire(view.gate),
        holders=map(holder_to_wire, view.holders),
        line=map(_waiter_to_wire, view.line),
    )


def holder_to_wire(holder: GateHolder) -> types_pb2.GateHolder:
    """Return who holds a gate as a message."""
    return types_pb2.GateHolder(
        process_id=holder.process_id,
        task_id=holder.task_id,
        held_at=wire.datetime_to_timestamp(holder.held_at),
        hold=wire.GATE_HOLD_TO_WIRE[holder.hold],
        reserved=holder.is_reserved,
    )


def _waiter_to_wire(waiter: GateWaiter) -> gate_service_pb2.GateWaiter:
    return gate_service_pb2.GateWaiter(
        process_id=waiter.process_id,
        task_id=waiter.task_id,
        priority=waiter.priority,
        since=wire.datetime_to_timestamp(waiter.since),
        gates=waiter.gates,
        aged=waiter.is_aged,
    )
