"""NamespaceService: each method decodes, asks the keeper of namespaces, encodes."""

import logging
from collections.abc import Callable, Mapping

from progressor.api.calls.deadlines import seconds_left
from progressor.api.calls.interceptors import Method
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.namespaces import codec as namespace_codec
from progressor.v1 import namespace_service_pb2 as messages

_log = logging.getLogger(__name__)


class NamespaceServicer:
    """What operators do with namespaces; raises the `errors` that become statuses."""

    def __init__(self, backend: Callable[[], Backend]) -> None:
        self._backend = backend

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by their names on the wire."""
        return {
            "CreateNamespace": self.create,
            "UpdateNamespace": self.update,
            "GetNamespace": self.get,
            "ListNamespaces": self.list,
            "DeleteNamespace": self.delete,
        }

    async def create(
        self, message: messages.CreateNamespaceRequest, context: CallContext
    ) -> messages.CreateNamespaceResponse:
        """Create a namespace."""
        seconds_left(context)
        created = await self._backend().namespaces.create(namespace_codec.create_from_wire(message))
        _log.info("namespace created", extra={"namespace": created.name})
        return messages.CreateNamespaceResponse(
            namespace=namespace_codec.namespace_to_wire(created)
        )

    async def update(
        self, message: messages.UpdateNamespaceRequest, context: CallContext
    ) -> messages.UpdateNamespaceResponse:
        """Change some fields of a namespace."""
        seconds_left(context)
        update = namespace_codec.update_from_wire(message)
        updated = await self._backend().namespaces.update(
            update.name, update.change, expected_revision=update.expected_revision
        )
        facts = {"namespace": updated.name, "revision": updated.revision}
        _log.info("namespace changed", extra=facts)
        return messages.UpdateNamespaceResponse(
            namespace=namespace_codec.namespace_to_wire(updated)
        )

    async def get(
        self, message: messages.GetNamespaceRequest, context: CallContext
    ) -> messages.GetNamespaceResponse:
        """Return a namespace as it is stored."""
        seconds_left(context)
        found = await self._backend().namespaces.get(namespace_codec.name_from_wire(message))
        return messages.GetNamespaceResponse(namespace=namespace_codec.namespace_to_wire(found))

    async def list(
        self, message: messages.ListNamespacesRequest, context: CallContext
    ) -> messages.ListNamespacesResponse:
        """Return a page of namespaces."""
        seconds_left(context)
        listing = namespace_codec.list_from_wire(message)
        # One more than requested shows whether there is a next page.
        found = await self._backend().namespaces.list(after=listing.after, limit=listing.limit + 1)
        return namespace_codec.page_to_wire(found, page_size=listing.limit)

    async def delete(
        self, message: messages.DeleteNamespaceRequest, context: CallContext
    ) -> messages.DeleteNamespaceResponse:
        """Delete a namespace without processes."""
        seconds_left(context)
        name = namespace_codec.name_from_wire(message)
        await self._backend().namespaces.delete(name)
        _log.info("namespace deleted", extra={"namespace": name})
        return messages.DeleteNamespaceResponse()
