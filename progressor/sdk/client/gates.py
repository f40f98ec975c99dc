"""``client.gates``: the gates of a namespace."""

from progressor.domain.gates.gate import Gate
from progressor.sdk.codec.wire import Seconds
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.transport.methods import (
    BlockingResource,
    RequestBuilder,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.gates import GateView, gate_from_wire, view_from_wire
from progressor.v1 import gate_service_pb2 as pb


class GateRequests(RequestBuilder):
    """Builds requests.

    `timeout` is in seconds or a timedelta; None: the client's. `namespace` "": the client's.
    """

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None, namespace: str = ""
    ) -> Listing[Gate]:
        """Iterate over the gates of a namespace in the order of their keys, page by page.

        `timeout` applies to each page.
        """
        return Listing(
            pb.ListGatesRequest(namespace=namespace or self.namespace, page_size=page_size),
            lambda message: map(gate_from_wire, message.gates),
            timeout,
        )

    def get(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[GateView]:
        """Return a gate with its holders and the tasks that wait for it.

        Raises:
            GateNotFoundError: The gate does not exist.
        """
        return Exchange(
            pb.GetGateRequest(namespace=namespace or self.namespace, gate=gate),
            view_from_wire,
            timeout,
            repeatable=True,
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
        """Set the capacity of a gate, created if it does not exist, and return the gate.

        A larger capacity admits waiting tasks. If it is less than what is held, tasks that are
        available give their place back, the youngest first; running tasks keep theirs.

        Args:
            gate: Its key.
            capacity: How many may hold it at once; 0: none.
            expected_revision: Change the gate only at this revision; 0: at any, or create it.
            timeout: Of the request.
            namespace: Of the gate.

        Raises:
            GateChangedError: The gate is at another revision.
            GateNotFoundError: A revision is expected, and the gate does not exist.
        """
        return Exchange(
            pb.SetGateRequest(
                namespace=namespace or self.namespace,
                gate=gate,
                capacity=capacity,
                expected_revision=expected_revision,
            ),
            lambda message: gate_from_wire(message.gate),
            timeout,
            # A repeat could overwrite a change that another client made in between.
            repeatable=False,
        )

    def delete(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[None]:
        """Delete a gate.

        Raises:
            GateInUseError: The gate is held, or tasks wait for it.
            GateNotFoundError: The gate does not exist.
        """
        return Exchange(
            pb.DeleteGateRequest(namespace=namespace or self.namespace, gate=gate),
            nothing,
            timeout,
        )


class Gates(Resource[GateRequests]):
    """The requests about gates; `GateRequests` documents the arguments."""

    list = iterated(GateRequests.list)
    get = sent(GateRequests.get)
    set = sent(GateRequests.set)
    delete = sent(GateRequests.delete)


class SyncGates(BlockingResource[GateRequests]):
    """`Gates` for programs without an event loop: blocking, safe in any thread."""

    list = blocking_iterated(GateRequests.list)
    get = blocking_sent(GateRequests.get)
    set = blocking_sent(GateRequests.set)
    delete = blocking_sent(GateRequests.delete)
