"""GateService: each method decodes, asks the keeper of gates, encodes."""

import logging
from collections.abc import Callable, Mapping

from progressor.api.calls.deadlines import seconds_left
from progressor.api.calls.interceptors import Method
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.gates import codec as gate_codec
from progressor.v1 import gate_service_pb2 as messages

_log = logging.getLogger(__name__)


class GateServicer:
    """What operators do with gates; raises the `errors` that become statuses."""

    def __init__(self, backend: Callable[[], Backend]) -> None:
        self._backend = backend

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by their names on the wire."""
        return {
            "ListGates": self.list,
            "GetGate": self.get,
            "SetGate": self.set,
            "DeleteGate": self.delete,
        }

    async def list(
        self, message: messages.ListGatesRequest, context: CallContext
    ) -> messages.ListGatesResponse:
        """Return a page of the gates of a namespace."""
        seconds_left(context)
        listing = gate_codec.list_from_wire(message)
        await self._backend().namespaces.lookup(listing.namespace)
        # One more than requested shows whether there is a next page.
        found = await self._backend().gates.list(
            listing.namespace, after=listing.after, limit=listing.limit + 1
        )
        return gate_codec.page_to_wire(found, page_size=listing.limit)

    async def get(
        self, message: messages.GetGateRequest, context: CallContext
    ) -> messages.GetGateResponse:
        """Return a gate with who holds it and who waits for it."""
        seconds_left(context)
        key = gate_codec.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        return gate_codec.view_to_wire(await self._backend().gates.get(key.namespace, key.gate))

    async def set(
        self, message: messages.SetGateRequest, context: CallContext
    ) -> messages.SetGateResponse:
        """Set the capacity of a gate."""
        seconds_left(context)
        setting = gate_codec.set_from_wire(message)
        await self._backend().namespaces.lookup(setting.namespace)
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
        return messages.SetGateResponse(gate=gate_codec.gate_to_wire(gate))

    async def delete(
        self, message: messages.DeleteGateRequest, context: CallContext
    ) -> messages.DeleteGateResponse:
        """Delete a gate that has no holders and that no task names."""
        seconds_left(context)
        key = gate_codec.key_of_request(message)
        await self._backend().namespaces.lookup(key.namespace)
        await self._backend().gates.delete(key.namespace, key.gate)
        _log.info("gate deleted", extra={"namespace": key.namespace, "gate": key.gate})
        return messages.DeleteGateResponse()
