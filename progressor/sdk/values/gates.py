"""Gates as operators see them, and their form on the wire."""

import dataclasses
import datetime as dt

from progressor.sdk.values.constraints import GateHolder
from progressor.v1 import gate_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import Shape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """How many processes of a namespace may hold it at once; 0: none may.

    ``held`` is above ``capacity`` only where that was lowered; ``waiting_count`` is counted up to
    1,000; ``revision`` counts the changes of the capacity, from 1.
    """

    namespace: str
    gate: str
    capacity: int
    held: int
    waiting_count: int
    revision: int
    created_at: dt.datetime
    updated_at: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWaiter:
    """A task in the line of a gate; from ``since`` on it could have run without its gates.

    ``gates`` are all that it wants. ``aged``: it has waited for so long that it goes before all
    others.
    """

    process_id: str
    task_id: int
    priority: int
    since: dt.datetime
    gates: tuple[str, ...]
    aged: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate, who holds it, the longest first, and who comes next, in order; 100 of each at most.

    A task that wants several gates stands in the line of the one that is full.
    """

    gate: Gate
    holders: tuple[GateHolder, ...]
    line: tuple[GateWaiter, ...]


_GATE = Shape(Gate, pb.Gate)
_HOLDER = Shape(GateHolder, types.GateHolder)
_VIEW = Shape(GateView, pb.GetGateResponse)

gate_from_wire = _GATE.read
holder_from_wire = _HOLDER.read
view_from_wire = _VIEW.read
