"""Every request about replicas, said once: `Client` and `SyncClient` only send them."""

from progressor.sdk.exchange import Exchange, Listing, Page, Service
from progressor.sdk.replicas import Replica, replica_from_wire
from progressor.sdk.wire import Seconds, optional_timedelta
from progressor.v1 import replica_service_pb2 as pb


class ReplicaCalls:
    """Builds requests; `timeout` is seconds or a timedelta, None the client's."""

    __slots__ = ()

    def list_replicas(
        self, *, page_size: int = 100, timeout: Seconds | None = None
    ) -> Listing[Replica]:
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
