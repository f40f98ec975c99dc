"""``client.gates``: the gates of a namespace, and what operators see of them."""

import dataclasses
from typing import Unpack

from progressor.domain.gates.gate import Gate, GateWaiter
from progressor.sdk.client.resource import (
    RequestOptions,
    Resource,
    blocking,
    exchange,
    iterated,
    listing,
    sent,
)
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

    Raises:
        GateNotFoundError: The gate does not exist.
    """

    @iterated
    def list(self, *, page_size: int = 100, **options: Unpack[RequestOptions]) -> Listing[Gate]:
        """Iterate over the gates of a namespace in the order of their keys, page by page."""
        request = pb.ListGatesRequest(page_size=page_size)
        return listing(self, request, read_gate, "gates", **options)

    @sent
    def get(self, gate: str, **options: Unpack[RequestOptions]) -> Exchange[GateView]:
        """Return a gate with its holders and the tasks that wait for it."""
        request = pb.GetGateRequest(gate=gate)
        return exchange(self, request, read_view, repeatable=True, **options)

    @sent
    def set(
        self,
        gate: str,
        capacity: int,
        *,
        expected_revision: int = 0,
        **options: Unpack[RequestOptions],
    ) -> Exchange[Gate]:
        """Set the capacity of a gate, created if it does not exist, and return the gate.

        A larger capacity admits waiting tasks. If it is less than what is held, tasks that are
        available give their place back, the youngest first; running tasks keep theirs.

        Args:
            gate: Its key.
            capacity: How many may hold it at once; 0: none.
            expected_revision: Change the gate only at this revision; 0: at any, or create it.
            options: See `RequestOptions`.

        Raises:
            GateChangedError: The gate is at another revision.
            GateNotFoundError: A revision is expected, and the gate does not exist.
        """
        request = pb.SetGateRequest(
            gate=gate, capacity=capacity, expected_revision=expected_revision
        )
        # Not repeatable: a repeat could overwrite a change that another client made in between.
        return exchange(self, request, read_gate, field="gate", **options)

    @sent
    def delete(self, gate: str, **options: Unpack[RequestOptions]) -> Exchange[None]:
        """Delete a gate.

        Raises:
            GateInUseError: The gate is held, or tasks wait for it.
        """
        return exchange(self, pb.DeleteGateRequest(gate=gate), nothing, **options)


class SyncGates(Resource[BlockingConnection]):
    """`Gates` for programs without an event loop: blocking, safe in any thread."""

    list = blocking(Gates.list)
    get = blocking(Gates.get)
    set = blocking(Gates.set)
    delete = blocking(Gates.delete)
