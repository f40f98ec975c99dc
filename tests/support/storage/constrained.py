"""Constraints, and where the time of a task with some went."""

import dataclasses
import datetime as dt
from typing import Any

from progressor.domain.gates.constraint import Constraints
from progressor.domain.views.wait import TimeSpent


def on(*gates: str, capacity: int | None = 1, **fields: Any) -> Constraints:
    """Return constraints on gates of a capacity."""
    return Constraints(gates=dict.fromkeys(gates, capacity), **fields)


def whole(spent: TimeSpent) -> dt.timedelta:
    parts = (getattr(spent, field.name) for field in dataclasses.fields(spent))
    return sum(parts, dt.timedelta())
