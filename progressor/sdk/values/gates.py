"""Gates as operators see them."""

import dataclasses
import datetime as dt

from progressor.domain.gates.gate import Gate
from progressor.sdk.values.constraints import GateHolder
from progressor.v1 import gate_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import Shape


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWaiter:
    """A task in the queue of a gate.

    ``since``: when its gates became the only thing it waits for. ``gates``: all that it needs.
    ``aged``: it has waited so long that it precedes all others.
    """

    process_id: str
    task_id: int
    priority: int
    since: dt.datetime
    gates: tuple[str, ...]
    aged: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate with its holders, the longest first, and its queue, in order; at most 100 of each.

    A task that needs several gates is in the queue of the one that is full.
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
