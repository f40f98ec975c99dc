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
from progressor.wire.shapes import Shape

Keyed = gate_service_pb2.GetGateRequest | gate_service_pb2.DeleteGateRequest

_GATE = Shape(Gate, gate_service_pb2.Gate)
HOLDER = Shape(GateHolder, types_pb2.GateHolder, is_reserved="reserved")
_VIEW = Shape(
    GateView,
    gate_service_pb2.GetGateResponse,
    holders=HOLDER,
    line=Shape(GateWaiter, gate_service_pb2.GateWaiter, is_aged="aged"),
)

gate_to_wire = _GATE.message
view_to_wire = _VIEW.message


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
