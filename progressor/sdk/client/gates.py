"""``client.gates``: the gates of a namespace, for either client."""

import dataclasses

from progressor.sdk.codec.wire import Seconds, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page, Service
from progressor.sdk.sending.sending import (
    BlockingResource,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.gates import Gate, GateView, gate_from_wire, view_from_wire
from progressor.v1 import gate_service_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateRequests:
    """Builds requests; `timeout` is seconds or a timedelta, None the client's.

    `namespace` "" is the client's.
    """

    namespace: str

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None, namespace: str = ""
    ) -> Listing[Gate]:
        """Go through the gates of a namespace in the order of their keys, page after page."""

        def page(token: str) -> Exchange[Page[Gate]]:
            return Exchange(
                rpc="ListGates",
                request=pb.ListGatesRequest(
                    namespace=namespace or self.namespace, page_size=page_size, page_token=token
                ),
                parse=lambda message: Page(
                    items=tuple(map(gate_from_wire, message.gates)),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
                service=Service.GATES,
            )

        return Listing(page=page)

    def get(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[GateView]:
        """Return a gate with who holds it and who waits for it.

        Raises:
            GateNotFoundError: There is none of this key.
        """
        return Exchange(
            rpc="GetGate",
            request=pb.GetGateRequest(namespace=namespace or self.namespace, gate=gate),
            parse=view_from_wire,
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.GATES,
        )

    def set(
        self,
        gate: str,
        capacity: int,
        *,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
        namespace: str = "",
    ) -> Exchange[Gate]:
        """Set the capacity of a gate, which is made where it is not there, and return it.

        With more, who waits is promoted. With less than is held, available tasks give way, the
        youngest first; what runs keeps its place.

        Raises:
            GateChangedError: It is no longer at `expected_revision`; 0 takes any, or none.
            GateNotFoundError: A revision is expected, and the gate does not exist.
        """
        return Exchange(
            rpc="SetGate",
            request=pb.SetGateRequest(
                namespace=namespace or self.namespace,
                gate=gate,
                capacity=capacity,
                expected_revision=expected_revision,
            ),
            parse=lambda message: gate_from_wire(message.gate),
            # Another's change may come between the two.
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.GATES,
        )

    def delete(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[None]:
        """Delete a gate.

        Raises:
            GateInUseError: It is held, or tasks name it.
            GateNotFoundError: There is none of this key.
        """
        return Exchange(
            rpc="DeleteGate",
            request=pb.DeleteGateRequest(namespace=namespace or self.namespace, gate=gate),
            parse=lambda _message: None,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.GATES,
        )


class Gates(Resource[GateRequests]):
    """What a program asks of gates; `GateRequests` explains each method's arguments."""

    list = iterated(GateRequests.list)
    get = sent(GateRequests.get)
    set = sent(GateRequests.set)
    delete = sent(GateRequests.delete)


class SyncGates(BlockingResource[GateRequests]):
    """`Gates` for programs without an event loop: blocking, and safe in any thread."""

    list = blocking_iterated(GateRequests.list)
    get = blocking_sent(GateRequests.get)
    set = blocking_sent(GateRequests.set)
    delete = blocking_sent(GateRequests.delete)
