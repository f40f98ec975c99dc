"""``client.replicas``: the replicas that share the engine's database."""

from progressor.sdk.codec.wire import Seconds, duration_to_wire
from progressor.sdk.transport.exchange import Exchange, Listing
from progressor.sdk.transport.methods import (
    BlockingResource,
    RequestBuilder,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.activity import Activity, activity_from_wire
from progressor.sdk.values.replicas import (
    LogLevel,
    LogLevelChange,
    Replica,
    change_from_wire,
    replica_from_wire,
)
from progressor.v1 import replica_service_pb2 as pb


class ReplicaRequests(RequestBuilder):
    """Builds requests; `timeout` is in seconds or a timedelta, None: the client's."""

    def list(self, *, page_size: int = 100, timeout: Seconds | None = None) -> Listing[Replica]:
        """Iterate over the replicas on the engine's database, the first started first.

        A dead replica is listed for another hour. `timeout` applies to each page.
        """
        return Listing(
            pb.ListReplicasRequest(page_size=page_size),
            lambda message: map(replica_from_wire, message.replicas),
            timeout,
        )

    def activity(self, *, timeout: Seconds | None = None) -> Exchange[Activity]:
        """Return what the replicas on the engine's database do, and what waits.

        `rates_between` two activities gives rates. The request is cheap enough for polling.
        """
        return Exchange(
            pb.GetActivityRequest(),
            activity_from_wire,
            timeout,
            repeatable=True,
        )

    def set_log_level(
        self, level: LogLevel, *, lasting: Seconds = 0, timeout: Seconds | None = None
    ) -> Exchange[LogLevelChange]:
        """Set the log level of the replica that receives the request, and of no other.

        After `lasting`, in seconds or a timedelta, the replica goes back to the level that was last
        set without an end, or to the configured one. 0: until it is set again.
        """
        return Exchange(
            pb.SetLogLevelRequest(
                level=pb.LogLevel.ValueType(level.number), lasting=duration_to_wire(lasting)
            ),
            change_from_wire,
            timeout,
            # A repeat would return the requested level as the previous one.
            repeatable=False,
        )


class Replicas(Resource[ReplicaRequests]):
    """The requests about replicas; `ReplicaRequests` documents the arguments."""

    list = iterated(ReplicaRequests.list)
    activity = sent(ReplicaRequests.activity)
    set_log_level = sent(ReplicaRequests.set_log_level)


class SyncReplicas(BlockingResource[ReplicaRequests]):
    """`Replicas` for programs without an event loop: blocking, safe in any thread."""

    list = blocking_iterated(ReplicaRequests.list)
    activity = blocking_sent(ReplicaRequests.activity)
    set_log_level = blocking_sent(ReplicaRequests.set_log_level)
