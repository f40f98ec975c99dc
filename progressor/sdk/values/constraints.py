"""Constraints: what a task must pass before it may run, and where its time went meanwhile."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Literal

from progressor.sdk.codec.wire import (
    WireEnum,
    instant_from_wire,
    optional_instant_to_wire,
)
from progressor.v1 import types_pb2 as types
from progressor.wire.shapes import Shape

PRIORITY_DEFAULT = 3


class GateHold(WireEnum):
    """Until when gates are held. UNSPECIFIED: one that only a newer SDK knows.

    TASK: until the task is settled, cancelled, or waits for a retry. PROCESS: until the process is
    finished, removed or in error.
    """

    UNSPECIFIED = "unspecified"
    TASK = "task"
    PROCESS = "process"


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A task waits while one of the same key with a smaller version has not ended.

    Versions are dotted numbers, compared as numbers: "1.9" is smaller than "1.10".
    """

    key: str
    version: str


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Constraints:
    """What a task must pass before it may run.

    One schema change at a time on a database, in the order of versions, at most five databases of
    the rollout at once, and not before ten in the evening::

        Constraints(
            gates={"database/orders": 1, "rollout/7": 5},
            order=("database/orders", "1.10"),
            run_at=ten_in_the_evening,
        )

    ``gates`` are by key: the capacity is for one that is not there yet; with None, or where only
    keys are given, as in ``gates=["database/orders"]``, it must be there.
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
        """Take what must be passed, all of it; nothing: the task passes at once.

        Args:
            run_at: Not before then, an aware datetime.
            order: A key and a version; see `Order`.
            gates: At most 8, held all or none; see the class.
            priority: Who goes first through a gate: 1, the highest, to 5.
            hold: Until when the gates are held; see `GateHold`.

        Raises:
            ValueError: A hold that there is not.
            TypeError: One text in place of a list of keys.
        """
        if isinstance(gates, str):
            message = f"gates are a mapping or a list of keys, as [{gates!r}]"
            raise TypeError(message)
        named = gates if isinstance(gates, Mapping) else dict.fromkeys(gates)
        object.__setattr__(self, "run_at", run_at)
        object.__setattr__(self, "order", Order(*order) if isinstance(order, tuple) else order)
        object.__setattr__(self, "gates", dict(named))
        object.__setattr__(self, "priority", priority)
        object.__setattr__(self, "hold", GateHold(hold))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateHolder:
    """A process that holds a gate, by the task that took it.

    ``reserved``: kept for a task that has waited for long, and cannot have its other gates yet.
    """

    process_id: str
    task_id: int
    held_at: dt.datetime
    hold: GateHold
    reserved: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """How long a task with constraints has been in which state; together they are its life.

    ``time``: until its instant, or that of a retry; ``order``: for a smaller version; ``process``:
    behind another task of its process; ``gates``: for these; ``available``: for a worker.
    """

    time: dt.timedelta
    order: dt.timedelta
    process: dt.timedelta
    gates: dt.timedelta
    available: dt.timedelta
    running: dt.timedelta


def constraints_to_wire(constraints: Constraints | None) -> types.Constraints | None:
    """Return constraints as a message, None as None.

    Raises:
        ValueError: `run_at` has no time zone.
    """
    if constraints is None:
        return None
    order = constraints.order
    return types.Constraints(
        run_at=optional_instant_to_wire(constraints.run_at),
        order=None if order is None else types.Order(key=order.key, version=order.version),
        gates=[
            types.GateUse(gate=gate, capacity=capacity)
            for gate, capacity in constraints.gates.items()
        ],
        priority=constraints.priority,
        hold=types.GateHold.ValueType(constraints.hold.number),
    )


def constraints_from_wire(message: types.Constraints) -> Constraints:
    """Return a Constraints message as its value, what was not said as what it stands for."""
    order = message.order
    return Constraints(
        run_at=instant_from_wire(message.run_at) if message.HasField("run_at") else None,
        order=Order(order.key, order.version) if message.HasField("order") else None,
        gates={it.gate: it.capacity if it.HasField("capacity") else None for it in message.gates},
        priority=message.priority or PRIORITY_DEFAULT,
        hold=GateHold.from_number(message.hold or GateHold.TASK.number),
    )


spent_from_wire = Shape(TimeSpent, types.TimeSpent).read
