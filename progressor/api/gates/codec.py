"""Requests of GateService from protobuf to domain, and gates back."""

import dataclasses

from progressor.api.calls import page_tokens
from progressor.api.calls.validation import (
    at_least_0,
    check_id,
    check_namespace_name,
)
from progressor.domain.gates.constraint import CAPACITY_MAX
from progressor.domain.gates.gate import Gate, GateHolder, GateView, GateWaiter
from progressor.v1 import gate_service_pb2, types_pb2
from progressor.wire.shapes import Field, Shape, between

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
class Setting:
    """A SetGate; revision 0: whatever it is at."""

    namespace: str
    gate: str
    capacity: int
    expected_revision: int


_KEY: Shape[GateKey, Keyed] = Shape(
    GateKey, gate_service_pb2.GetGateRequest, namespace=check_namespace_name, gate=check_id
)
_SETTING = Shape(
    Setting,
    gate_service_pb2.SetGateRequest,
    namespace=check_namespace_name,
    gate=check_id,
    capacity=Field(given=True, check=between(0, CAPACITY_MAX)),
    expected_revision=at_least_0,
)

list_from_wire = page_tokens.GATES.listing(gate_service_pb2.ListGatesRequest).read
set_from_wire = _SETTING.read


def key_of_request(message: Keyed) -> GateKey:
    """Return the gate that a GetGate or a DeleteGate is about."""
    return _KEY.read(message)


def page_to_wire(gates: tuple[Gate, ...], *, page_size: int) -> gate_service_pb2.ListGatesResponse:
    """Return a page of at most `page_size`; one more says that there is a next."""
    page, token = page_tokens.GATES.page(gates, page_size, lambda gate: gate.gate)
    return gate_service_pb2.ListGatesResponse(gates=map(gate_to_wire, page), next_page_token=token)
