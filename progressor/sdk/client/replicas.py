"""``client.replicas``: the replicas on an engine's database, for either client."""

from progressor.sdk.codec.wire import Seconds, duration_to_wire, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page, Service
from progressor.sdk.sending.sending import (
    BlockingResource,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.activity import Activity, activity_from_wire
from progressor.sdk.values.replicas import LogLevel, LogLevelChange, Replica, replica_from_wire
from progressor.v1 import replica_service_pb2 as pb


class ReplicaRequests:
    """Builds requests; `timeout` is seconds or a timedelta, None the client's."""

    def list(self, *, page_size: int = 100, timeout: Seconds | None = None) -> Listing[Replica]:
        """Go through the replicas on the engine's database in the order of their starts.

        Those that died are among them for an hour. `timeout` is for one page.
        """

        def page(token: str) -> Exchange[Page[Replica]]:
            return Exchange(
                rpc="ListReplicas",
                request=pb.ListReplicasRequest(page_size=page_size, page_token=token),
                parse=lambda message: Page(
                    items=tuple(replica_from_wire(it) for it in message.replicas),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
                service=Service.REPLICAS,
            )

        return Listing(page=page)

    def activity(self, *, timeout: Seconds | None = None) -> Exchange[Activity]:
        """Return what the replicas on the engine's database do, and what waits.

        Two of them make rates: `rates_between`. It is cheap to ask for again and again.
        """
        return Exchange(
            rpc="GetActivity",
            request=pb.GetActivityRequest(),
            parse=activity_from_wire,
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.REPLICAS,
        )

    def set_log_level(
        self, level: LogLevel, *, lasting: Seconds = 0, timeout: Seconds | None = None
    ) -> Exchange[LogLevelChange]:
        """Change how much the log of the replica says that answers; of no other.

        After `lasting` its level is again what it was set to last without an end, or at its start;
        0: it lasts until it is changed.
        """
        return Exchange(
            rpc="SetLogLevel",
            request=pb.SetLogLevelRequest(
                level=pb.LogLevel.ValueType(level.number), lasting=duration_to_wire(lasting)
            ),
            parse=lambda message: LogLevelChange(
                replica_name=message.replica_name,
                previous_level=LogLevel.from_number(message.previous_level),
            ),
            # Twice, and the level before would be the one that was asked for.
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.REPLICAS,
        )


class Replicas(Resource[ReplicaRequests]):
    """What a program asks of replicas; `ReplicaRequests` explains each method's arguments."""

    list = iterated(ReplicaRequests.list)
    activity = sent(ReplicaRequests.activity)
    set_log_level = sent(ReplicaRequests.set_log_level)


class SyncReplicas(BlockingResource[ReplicaRequests]):
    """`Replicas` for programs without an event loop: blocking, and safe in any thread."""

    list = blocking_iterated(ReplicaRequests.list)
    activity = blocking_sent(ReplicaRequests.activity)
    set_log_level = blocking_sent(ReplicaRequests.set_log_level)
