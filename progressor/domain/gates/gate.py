"""Gates as operators see them; the rules are in ``constraint``."""

import dataclasses
import datetime as dt

from progressor.domain.gates.constraint import GateHold

COUNTED_MAX = 1000
"""The highest count of tasks that wait for a gate."""

HOLDERS_MAX = 100
LINE_MAX = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate; at most ``capacity`` processes of its namespace may hold it at once.

    ``held`` exceeds ``capacity`` only after that was lowered. ``waiting_count`` is counted up to
    1,000. ``revision`` counts the changes of the capacity, from 1.
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
class GateHolder:
    """A process that holds a gate, by the task that took it.

    ``is_reserved``: kept for a task that has waited for longer than the starvation timeout and
    still waits for its other gates.
    """

    process_id: str
    task_id: int
    held_at: dt.datetime
    hold: GateHold
    is_reserved: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateWaiter:
    """A task in the queue of a gate.

    ``since``: when its gates became the only thing it waits for. ``gates``: all that it needs.
    ``is_aged``: it has waited so long that it precedes all others.
    """

    process_id: str
    task_id: int
    priority: int
    since: dt.datetime
    gates: tuple[str, ...]
    is_aged: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate, its first HOLDERS_MAX holders and the first LINE_MAX tasks of its queue."""

    gate: Gate
    holders: tuple[GateHolder, ...]
    line: tuple[GateWaiter, ...]
