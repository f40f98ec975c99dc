"""Activity: what the replicas do and what waits, as one response shows both."""

import dataclasses
import datetime as dt
from collections.abc import Collection

from progressor.domain.views.replica import Facts

QUEUES_MAX = 250
"""Namespaces whose queues are counted, in a response and in the metrics."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits in a namespace.

    ``due`` are those that need only a free worker; ``timers`` and ``retries`` wait for their time,
    ``behind`` for another task of their process. With constraints, ``run_at`` are those that wait
    for their instant, ``order`` for a smaller version, ``gate`` for a place in their gates, and
    ``available`` have passed all of that: these are not among ``due``. The seconds are those that
    the oldest has waited (a retry: since its first attempt), 0 where there is none. ``held`` places
    of gates are taken, and ``full_gates`` have none left for those in their queues. ``schedules``
    have a next instant, of which ``late_schedules`` were due some seconds ago.
    """

    namespace: str
    due: int
    due_seconds: float
    timers: int
    retries: int
    retry_seconds: float
    behind: int
    behind_seconds: float
    run_at: int = 0
    order: int = 0
    order_seconds: float = 0.0
    gate: int = 0
    gate_seconds: float = 0.0
    available: int = 0
    available_seconds: float = 0.0
    held: int = 0
    full_gates: int = 0
    jobs: int = 0
    waiting_nodes: int = 0
    ready_nodes: int = 0
    running_nodes: int = 0
    failed_nodes: int = 0
    schedules: int = 0
    paused_schedules: int = 0
    late_schedules: int = 0

    @property
    def has_constraints(self) -> bool:
        """Whether anything there waits for its constraints, has passed them, or holds a gate."""
        return any((self.run_at, self.order, self.gate, self.available, self.held))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """What waits in the namespaces, in their order, as counted `age` ago; None: it was not.

    ``left_out_count`` are namespaces beyond what is counted. Numbers less than ``exact_below`` are
    exact, the others may be of more.
    """

    queues: tuple[Queue, ...] = ()
    age: dt.timedelta | None = None
    left_out_count: int = 0
    exact_below: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    facts: Facts
    counts: QueueCounts


def even_share(lengths: Collection[int], total: int) -> int:
    """Return the largest equal share of `total`; what one does not need goes to others."""
    left = total
    for number, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - number)
        if length > share:
            return share
        left -= length
    return max(lengths, default=0)
