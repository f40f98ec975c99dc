"""ReplicaService: the replicas on this database, their activity, and this replica's log level."""

from collections.abc import Callable, Mapping

from progressor.api.calls.deadlines import seconds_left
from progressor.api.calls.interceptors import Method
from progressor.api.calls.ports import Backend, CallContext, LogLevels
from progressor.api.replicas import activity_codec
from progressor.api.replicas import codec as replica_codec
from progressor.v1 import replica_service_pb2 as messages


class ReplicaServicer:
    """What operators ask of replicas; raises the `errors` that become statuses."""

    def __init__(self, backend: Callable[[], Backend], *, log_levels: LogLevels, name: str) -> None:
        self._backend = backend
        self._log_levels = log_levels
        self._name = name

    def methods(self) -> Mapping[str, Method]:
        """Return the methods by their names on the wire."""
        return {
            "ListReplicas": self.list,
            "GetActivity": self.activity,
            "SetLogLevel": self.set_log_level,
        }

    async def list(
        self, message: messages.ListReplicasRequest, context: CallContext
    ) -> messages.ListReplicasResponse:
        """Return a page of replicas."""
        seconds_left(context)
        listing = replica_codec.list_from_wire(message)
        # One more than requested shows whether there is a next page.
        found = await self._backend().roster.list(after=listing.after, limit=listing.limit + 1)
        return replica_codec.page_to_wire(found, page_size=listing.limit)

    async def activity(
        self, _message: messages.GetActivityRequest, context: CallContext
    ) -> messages.GetActivityResponse:
        """Return what the replicas do and what waits."""
        seconds_left(context)
        return activity_codec.activity_to_wire(await self._backend().activities.read())

    async def set_log_level(
        self, message: messages.SetLogLevelRequest, context: CallContext
    ) -> messages.SetLogLevelResponse:
        """Change how much this replica's log says."""
        seconds_left(context)
        change = replica_codec.log_change_from_wire(message)
        previous = self._log_levels.set(change.level, change.lasting)
        return messages.SetLogLevelResponse(
            previous_level=replica_codec.log_level_to_wire(previous), replica_name=self._name
        )
