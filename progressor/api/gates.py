"""GateService."""

import dataclasses
import logging
from typing import Annotated

from progressor.api.calls import page_tokens
from progressor.api.calls.page_tokens import Listing
from progressor.api.calls.servicer import Servicer, reading
from progressor.api.calls.traces import CallContext
from progressor.api.calls.validation import Id, NamespaceName, Revision, check_own_namespace
from progressor.domain.gates.constraint import CAPACITY_MAX
from progressor.domain.gates.gate import Gate, GateHolder, GateView, GateWaiter
from progressor.v1 import gate_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire.shapes import Field, Shape, between

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateKey:
    """What a GetGate or a DeleteGate is about."""

    namespace: NamespaceName
    gate: Id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting(GateKey):
    capacity: Annotated[int, Field(given=True, check=between(0, CAPACITY_MAX))]
    expected_revision: Revision


HOLDER = Shape(GateHolder, types_pb2.GateHolder, is_reserved="reserved")

list_from_wire = page_tokens.GATES.listing(pb.ListGatesRequest).read
key_from_wire = Shape(GateKey, pb.GetGateRequest).read
set_from_wire = Shape(Setting, pb.SetGateRequest, namespace=check_own_namespace).read
gate_to_wire = Shape(Gate, pb.Gate).message
view_to_wire = Shape(
    GateView,
    pb.GetGateResponse,
    holders=HOLDER,
    line=Shape(GateWaiter, pb.GateWaiter, is_aged="aged"),
).message


def page_to_wire(gates: tuple[Gate, ...], *, page_size: int) -> pb.ListGatesResponse:
    page, token = page_tokens.GATES.page(gates, page_size, lambda gate: gate.gate)
    return pb.ListGatesResponse(gates=map(gate_to_wire, page), next_page_token=token)


class GateServicer(Servicer):
    """What operators do with gates."""

    service = pb.DESCRIPTOR.services_by_name["GateService"]

    @reading(list_from_wire)
    async def list_gates(self, asked: Listing[str], _: CallContext) -> pb.ListGatesResponse:
        found = await self._backend().gates.list(
            asked.namespace, after=asked.after, limit=asked.limit + 1
        )
        return page_to_wire(found, page_size=asked.limit)

    @reading(key_from_wire)
    async def get_gate(self, key: GateKey, _: CallContext) -> pb.GetGateResponse:
        return view_to_wire(await self._backend().gates.get(key.namespace, key.gate))

    @reading(set_from_wire)
    async def set_gate(self, setting: Setting, _: CallContext) -> pb.SetGateResponse:
        gate = await self._backend().gate_capacities.set(
            setting.namespace,
            setting.gate,
            capacity=setting.capacity,
            expected_revision=setting.expected_revision,
        )
        facts = {
            "namespace": gate.namespace,
            "gate": gate.gate,
            "capacity": gate.capacity,
            "revision": gate.revision,
        }
        _log.info("gate set", extra=facts)
        return pb.SetGateResponse(gate=gate_to_wire(gate))

    @reading(key_from_wire)
    async def delete_gate(self, key: GateKey, _: CallContext) -> pb.DeleteGateResponse:
        await self._backend().gates.delete(key.namespace, key.gate)
        _log.info("gate deleted", extra={"namespace": key.namespace, "gate": key.gate})
        return pb.DeleteGateResponse()
