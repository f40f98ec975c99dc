"""ReplicaService: who runs on this database."""

from collections.abc import Mapping

from progressor.api import replica_codec
from progressor.api.deadlines import seconds_left
from progressor.api.interceptors import Method
from progressor.api.ports import CallContext, Roster
from progressor.v1 import replica_service_pb2 as messages


class ReplicaServicer:
    """What operators ask of replicas; raises the `errors` that become statuses."""

    def __init__(self, *, roster: Roster) -> None:
        """Take the list of replicas."""
        self._roster = roster

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by their names on the wire."""
        return {"ListReplicas": self.list}

    async def list(
        self, message: messages.ListReplicasRequest, context: CallContext
    ) -> messages.ListReplicasResponse:
        """Return a page of replicas."""
        seconds_left(context)
        listing = replica_codec.list_from_wire(message)
        # One more than asked for tells whether there is a next page.
        found = await self._roster.list(after=listing.after, limit=listing.limit + 1)
        return replica_codec.page_to_wire(found, page_size=listing.limit)
