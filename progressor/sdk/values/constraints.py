"""Constraints: what must hold before a task may run, and how long it waited for that."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Literal

from progressor.sdk.codec.wire import WireEnum, instant
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import Field, Shape

PRIORITY_DEFAULT = 3


class GateHold(WireEnum):
    """How long gates are held. UNSPECIFIED: a value that only a newer SDK knows.

    TASK: until the task is settled, cancelled or waits for a retry. PROCESS: until the process is
    finished, removed or in error.
    """

    UNSPECIFIED = "unspecified"
    TASK = "task"
    PROCESS = "process"


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A position among the tasks of one key: a task waits until all smaller versions have ended.

    Versions are dotted numbers, compared as numbers: "1.9" is less than "1.10".
    """

    key: str
    version: str


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Constraints:
    """What must hold before a task may run.

    One schema change at a time on a database, in the order of versions, on at most five databases
    of the rollout at once, and not before ten in the evening::

        Constraints(
            gates={"database/orders": 1, "rollout/7": 5},
            order=("database/orders", "1.10"),
            run_at=ten_in_the_evening,
        )

    ``gates`` maps the key of each gate to the capacity with which it is created if it does not
    exist. With None, or with keys only, as in ``gates=["database/orders"]``, it must exist.
    """

    run_at: dt.datetime | None
    order: Order | None
    gates: Mapping[str, int | None]
    priority: int
    hold: GateHold

    def __init__(
        self,
        *,
        run_at: dt.datetime | None = None,
        order: Order | tuple[str, str] | None = None,
        gates: Mapping[str, int | None] | Iterable[str] = (),
        priority: int = PRIORITY_DEFAULT,
        hold: GateHold | Literal["task", "process"] = GateHold.TASK,
    ) -> None:
        """Create constraints, all of which must hold; without arguments, none.

        Args:
            run_at: The earliest instant, an aware datetime.
            order: A key and a version; see `Order`.
            gates: At most 8; the task holds all of them or none.
            priority: Which task gets a free gate first: 1, the highest, to 5.
            hold: How long the gates are held; see `GateHold`.

        Raises:
            ValueError: Unknown hold.
            TypeError: `gates` is a string.
        """
        if isinstance(gates, str):
            message = f"gates must be a mapping or a list of keys, as [{gates!r}], got a string"
            raise TypeError(message)
        named = gates if isinstance(gates, Mapping) else dict.fromkeys(gates)
        object.__setattr__(self, "run_at", run_at)
        object.__setattr__(self, "order", Order(*order) if isinstance(order, tuple) else order)
        object.__setattr__(self, "gates", dict(named))
        object.__setattr__(self, "priority", priority)
        object.__setattr__(self, "hold", GateHold(hold))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateHolder:
    """A process that holds a gate, and the task that acquired it.

    ``reserved``: the gate is kept for a task that has waited long and lacks its other gates.
    """

    process_id: str
    task_id: int
    held_at: dt.datetime
    hold: GateHold
    reserved: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """How long a task with constraints waited for what, and ran; the sum is its whole life.

    ``time``: for `run_at` or a retry; ``order``: for smaller versions; ``process``: behind another
    task of its process; ``gates``: for gates; ``available``: for a worker.
    """

    time: dt.timedelta
    order: dt.timedelta
    process: dt.timedelta
    gates: dt.timedelta
    available: dt.timedelta
    running: dt.timedelta


def _read_gates(
    message: types.Constraints, _path: str, _context: object
) -> Mapping[str, int | None]:
    return {it.gate: it.capacity if it.HasField("capacity") else None for it in message.gates}


def _write_gates(
    message: types.Constraints, gates: Mapping[str, int | None], _context: object
) -> None:
    for gate, capacity in gates.items():
        message.gates.add(gate=gate, capacity=capacity)


_CONSTRAINTS = Shape(
    Constraints,
    types.Constraints,
    run_at=instant("run_at"),
    gates=Field(read=_read_gates, write=_write_gates),
    priority=Field(
        read=lambda message, _path, _context: message.priority or PRIORITY_DEFAULT,
        write=lambda message, value, _context: setattr(message, "priority", value),
    ),
    hold=Field(
        read=lambda message, _path, _context: (
            GateHold.from_number(message.hold) if message.hold else GateHold.TASK
        ),
        write=lambda message, value, _context: setattr(message, "hold", value.number),
    ),
)

constraints_to_wire = _CONSTRAINTS.message
constraints_from_wire = _CONSTRAINTS.read
spent_from_wire = Shape(TimeSpent, types.TimeSpent).read

CONSTRAINTS = Field(shape=_CONSTRAINTS)
"""The field of a message with constraints."""
