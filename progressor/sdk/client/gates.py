"""``client.gates``: the gates of a namespace, and what operators see of them."""

import dataclasses

from progressor.domain.gates.gate import Gate, GateWaiter
from progressor.sdk.client.resource import (
    Resource,
    blocking,
    blocking_iterated,
    iterated,
    sent,
)
from progressor.sdk.codec.wire import Seconds
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.values.constraints import GateHolder
from progressor.v1 import gate_service_pb2 as pb
from progressor.wire.shapes import Shape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate with its holders, the longest first, and its queue, in order; at most 100 of each.

    A task that needs several gates is in the queue of the one that is full.
    """

    gate: Gate
    holders: tuple[GateHolder, ...]
    line: tuple[GateWaiter, ...]


read_gate = Shape(Gate, pb.Gate).read
read_view = Shape(
    GateView, pb.GetGateResponse, line=Shape(GateWaiter, pb.GateWaiter, is_aged="aged")
).read


class Gates(Resource[Connection]):
    """The requests about gates.

    `timeout` is in seconds or a timedelta; None: the client's. `namespace` "": the client's.
    """

    @iterated
    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None, namespace: str = ""
    ) -> Listing[Gate]:
        """Iterate over the gates of a namespace in the order of their keys, page by page.

        `timeout` applies to each page.
        """
        request = pb.ListGatesRequest(namespace=namespace or self.namespace, page_size=page_size)
        return Listing(request, lambda message: map(read_gate, message.gates), timeout)

    @sent
    def get(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[GateView]:
        """Return a gate with its holders and the tasks that wait for it.

        Raises:
            GateNotFoundError: The gate does not exist.
        """
        request = pb.GetGateRequest(namespace=namespace or self.namespace, gate=gate)
        return Exchange(request, read_view, timeout, repeatable=True)

    @sent
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
        request = pb.SetGateRequest(
            namespace=namespace or self.namespace,
            gate=gate,
            capacity=capacity,
            expected_revision=expected_revision,
        )
        # Not repeatable: a repeat could overwrite a change that another client made in between.
        return Exchange(request, lambda message: read_gate(message.gate), timeout)

    @sent
    def delete(
        self, gate: str, *, timeout: Seconds | None = None, namespace: str = ""
    ) -> Exchange[None]:
        """Delete a gate.

        Raises:
            GateInUseError: The gate is held, or tasks wait for it.
            GateNotFoundError: The gate does not exist.
        """
        request = pb.DeleteGateRequest(namespace=namespace or self.namespace, gate=gate)
        return Exchange(request, nothing, timeout)


class SyncGates(Resource[BlockingConnection]):
    """`Gates` for programs without an event loop: blocking, safe in any thread."""

    list = blocking_iterated(Gates.list)
    get = blocking(Gates.get)
    set = blocking(Gates.set)
    delete = blocking(Gates.delete)
