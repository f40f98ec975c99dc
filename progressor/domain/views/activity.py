"""Activity: what the replicas do and what waits, as one response shows both."""

import dataclasses
import datetime as dt
from collections.abc import Collection

from progressor.domain.views.replica import Facts

QUEUES_MAX = 250
"""Namespaces whose queues are counted, in a response and in the metrics."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQueue:
    """What waits in a namespace, over all replicas.

    Tasks without constraints: ``due_count`` wait only for a worker, ``timer_count`` and
    ``retry_count`` for their time, ``behind_count`` for another task of their process,
    ``process_failed_count`` for their process, which is in error, to come back. With
    constraints: ``run_at_count`` wait for their instant, ``order_count`` for a smaller version,
    ``gate_count`` for a gate, ``available_count`` only for a worker. Each age is that of the oldest
    such task; None: there is none. The age of a retry begins with its first attempt, that of a task
    with constraints when it began to wait for this cause.

    ``held_count``: places of gates that are held. ``full_gate_count``: gates that are full and have
    a queue.

    ``job_count``: running jobs, counted up to 10,000 over all namespaces; the node counts are
    theirs. ``schedule_count``: schedules with a next instant, of which ``late_schedule_count`` were
    due more than 5 s ago. ``paused_schedule_count``: paused ones.

    ``paused_age``: how long the namespace has been paused; what is due waits for that.

    The process counts are of processes by status, without a limit. They are exact unless
    ``process_count_is_estimate``: while a replica of a release that does not count runs, and until
    the processes have been scanned after it.
    """

    namespace: str
    due_count: int
    due_age: dt.timedelta | None
    timer_count: int
    retry_count: int
    retry_age: dt.timedelta | None
    behind_count: int
    behind_age: dt.timedelta | None
    run_at_count: int = 0
    order_count: int = 0
    order_age: dt.timedelta | None = None
    gate_count: int = 0
    gate_age: dt.timedelta | None = None
    available_count: int = 0
    available_age: dt.timedelta | None = None
    held_count: int = 0
    full_gate_count: int = 0
    job_count: int = 0
    waiting_node_count: int = 0
    ready_node_count: int = 0
    running_node_count: int = 0
    failed_node_count: int = 0
    schedule_count: int = 0
    paused_schedule_count: int = 0
    late_schedule_count: int = 0
    process_failed_count: int = 0
    process_failed_age: dt.timedelta | None = None
    paused_age: dt.timedelta | None = None
    init_process_count: int = 0
    running_process_count: int = 0
    error_process_count: int = 0
    finished_process_count: int = 0
    process_count_is_estimate: bool = False

    @property
    def worker_age(self) -> dt.timedelta | None:
        """How long the oldest has waited for nothing but a worker; None: none does."""
        ages = [age for age in (self.due_age, self.available_age) if age is not None]
        return max(ages, default=None)

    @property
    def has_constraints(self) -> bool:
        """Whether tasks with constraints wait there, or hold gates."""
        return any(
            (
                self.run_at_count,
                self.order_count,
                self.gate_count,
                self.available_count,
                self.held_count,
            )
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """What waits in the namespaces, in their order, as counted `age` ago; None: it was not.

    ``left_out_count`` are namespaces beyond what is counted. Numbers less than ``exact_below`` are
    exact, the others may be of more.
    """

    queues: tuple[NamespaceQueue, ...] = ()
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
