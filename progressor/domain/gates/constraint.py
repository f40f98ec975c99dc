"""Constraints: what a task must pass before it may run. Source: DESIGN, section 8.

==========  =========================================  ===========================================
state       the task waits for                         ends when
==========  =========================================  ===========================================
time        its instant: ``run_at``, a timer's, or     it has come
            that of a retry
order       a smaller version of its order             the last of the smaller ones has ended
process     another task of its process                that one is settled
gates       a place in each of its gates, all or none  a holder of the last one leaves it
available   nothing but a worker                       a replica claims it
==========  =========================================  ===========================================

A gate admits the waiting task of the highest priority first, and the oldest of these. A younger
task may pass an older one that waits for something else. To prevent starvation, a task that has
waited for longer than the starvation timeout precedes all others, reserves the free places of its
gates (in the order of their keys, so that two tasks never wait for each other), and takes the next
place in the queue of its process even while a step of that is running.
"""

import dataclasses
import datetime as dt
import enum
import re
from collections.abc import Collection, Mapping

PRIORITY_DEFAULT = 3
PRIORITY_MAX = 5
GATES_MAX = 8
"""Gates of one task."""

CAPACITY_MAX = 1_000_000
VERSION_PARTS_MAX = 16
VERSION_PART_MAX = 2**31 - 1

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*", re.ASCII)


class GatedState(enum.StrEnum):
    """Where a task with constraints is. Members and order equal the SQL enum ``gated_state``."""

    TIME = "time"
    ORDER = "order"
    PROCESS = "process"
    GATES = "gates"
    AVAILABLE = "available"


class GateHold(enum.StrEnum):
    """Until when gates are held. Members and order equal the SQL enum ``gate_hold``.

    TASK: until the task is settled, cancelled, or waits for a retry. PROCESS: until the process is
    finished, removed or in error.
    """

    TASK = "task"
    PROCESS = "process"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Version:
    """Dotted numbers, compared as numbers: 1.9 is smaller than 1.10, and 1 equals 1.0."""

    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        """Drop trailing zeros, which have no meaning."""
        parts = self.parts
        while len(parts) > 1 and not parts[-1]:
            parts = parts[:-1]
        object.__setattr__(self, "parts", parts)

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Parse dotted numbers; raises ValueError if the text is not a version."""
        if not _VERSION.fullmatch(text):
            message = f"{text!r} is not a version: dotted numbers, as 1.10.2"
            raise ValueError(message)
        parts = tuple(map(int, text.split(".")))
        if len(parts) > VERSION_PARTS_MAX:
            message = f"{text!r} has more than {VERSION_PARTS_MAX} numbers"
            raise ValueError(message)
        if max(parts) > VERSION_PART_MAX:
            message = f"{text!r} has a number above {VERSION_PART_MAX}"
            raise ValueError(message)
        return cls(parts)

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A task waits while one of the same key with a smaller version has not ended."""

    key: str
    version: Version

    def waits_for(self, other: "Order | None") -> bool:
        return other is not None and other.key == self.key and other.version < self.version


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The constraints of one task. The default has none.

    ``gates``: by key, the capacity with which a missing gate is created; None: the gate must exist.
    ``hold``: until when they are held. ``priority``: 1, the highest, to 5.
    """

    run_at: dt.datetime | None = None
    order: Order | None = None
    gates: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    priority: int = PRIORITY_DEFAULT
    hold: GateHold = GateHold.TASK

    @property
    def is_empty(self) -> bool:
        """Whether they constrain nothing: a priority alone does not."""
        return self.run_at is None and self.order is None and not self.gates

    def __str__(self) -> str:
        """Return a text that is equal for equal constraints, whatever the order of the gates."""
        gates = sorted(self.gates.items())
        return f"{self.run_at}\0{self.order}\0{gates}\0{self.priority}\0{self.hold}"


def waits(
    places: Mapping[str, int],
    *,
    own: Collection[str],
    is_due: bool,
    is_ordered: bool,
    is_next: bool,
) -> frozenset[GatedState]:
    """Return all that a task waits for; nothing: it may pass.

    Args:
        places: By gate of the task: the capacity, less those that hold it or have it reserved.
        own: Gates that its process holds without using them, or that are reserved for the task.
            They count only for a task that waits for nothing else.
        is_due: Its instant has come, or it has none.
        is_ordered: No task for which its order waits is unended.
        is_next: Its process runs no step, and the task is the next in its queue.
    """
    found = {
        state
        for state, passes in (
            (GatedState.TIME, is_due),
            (GatedState.ORDER, is_ordered),
            (GatedState.PROCESS, is_next),
        )
        if not passes
    }
    if any(places[gate] <= 0 for gate in places.keys() - (() if found else own)):
        found.add(GatedState.GATES)
    return frozenset(found)


def rank(
    priority: int, ready_at: dt.datetime, task_id: int, *, starving_since: dt.datetime
) -> tuple[int, dt.datetime | int, int]:
    """Return what tasks in the queue of a gate are admitted by, the smallest first.

    `ready_at` is when the task could have run without its gates; `starving_since`, the starvation
    timeout ago: one that was ready by then goes first.
    """
    if ready_at <= starving_since:
        return 0, ready_at, task_id
    return 1, priority, task_id
