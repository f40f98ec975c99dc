"""Constraints as the functions in ``priv`` take them, and as the column of ``tasks`` keeps them."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec

from progressor.domain.gates.constraint import (
    PRIORITY_DEFAULT,
    Constraints,
    GateHold,
    Order,
    Version,
)

_encode = msgspec.json.Encoder().encode
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def constraints_text(constraints: Constraints | None) -> bytes | None:
    """Return constraints as JSON; what has its default is left out."""
    if constraints is None:
        return None
    told: dict[str, Any] = {}
    if constraints.run_at is not None:
        told["run_at"] = (constraints.run_at - _EPOCH) // _MICROSECOND
    if constraints.order is not None:
        told["order"] = [constraints.order.key, constraints.order.version.parts]
    if constraints.gates:
        told["gates"] = dict(constraints.gates)
    if constraints.priority != PRIORITY_DEFAULT:
        told["priority"] = constraints.priority
    if constraints.hold is not GateHold.TASK:
        told["hold"] = constraints.hold.value
    return _encode(told)


def constraints_of(column: Mapping[str, Any] | None) -> Constraints | None:
    """Return the constraints of a column."""
    if column is None:
        return None
    order = column.get("order")
    run_at = column.get("run_at")
    return Constraints(
        run_at=None if run_at is None else _EPOCH + run_at * _MICROSECOND,
        order=None if order is None else Order(order[0], Version(tuple(order[1]))),
        gates=column.get("gates", {}),
        priority=column.get("priority", PRIORITY_DEFAULT),
        hold=GateHold(column.get("hold", GateHold.TASK)),
    )
