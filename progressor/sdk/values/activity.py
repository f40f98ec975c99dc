"""What goes on in an engine, as one answer tells it, and the rates that two of them make."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TypeAlias

from progressor.sdk.values.replicas import ReplicaState
from progressor.v1 import replica_service_pb2 as pb
from progressor.wire.shapes import Shape

_NO_TIME = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTally:
    """What a replica has done in a namespace since it started; only grows.

    ``settled_count`` are attempts whose outcome was written, ``attempt_count`` those that the
    processor answered or failed, ``failed_count`` of these the failures, and ``processor_time`` is
    what they took in all.
    """

    settled_count: int = 0
    attempt_count: int = 0
    failed_count: int = 0
    processor_time: dt.timedelta = _NO_TIME


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceActivity:
    """A namespace in one replica: workers busy, of how many.

    ``unreachable_for`` is how long its processor had not been reached; None: it was, or nobody
    tried. ``tally`` is None where the replica's release does not tell it.
    """

    namespace: str
    busy_count: int
    worker_count: int
    unreachable_for: dt.timedelta | None
    tally: StepTally | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaActivity:
    """A replica, as its last heartbeat told of it.

    ``step_count`` and ``caller_count`` are None where its release does not tell them. A namespace
    that is not among ``namespaces`` has had no step there, unless ``is_partial``.
    """

    replica_id: int
    name: str
    version: str
    state: ReplicaState
    heartbeat_at: dt.datetime
    heartbeat_age: dt.timedelta
    step_count: int | None
    caller_count: int | None
    namespaces: tuple[NamespaceActivity, ...]
    is_partial: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQueue:
    """What waits in a namespace, over all replicas.

    ``due_count`` are tasks to which nothing but a worker is missing; timers and retries wait for
    their time, ``behind_count`` for another task of their process. With constraints,
    ``run_at_count`` wait for their instant, ``order_count`` for a smaller version, ``gate_count``
    for a place in their gates, and ``available_count``, not among ``due_count``, for nothing but a
    worker. Ages are of the oldest of them, a retry's from its first attempt, with constraints from
    when they came to wait for that; None: there is none.

    ``held_count`` places of gates are taken, and ``full_gate_count`` gates have none left for their
    lines.

    ``job_count`` jobs run, of 10,000 at most in all namespaces, with so many nodes that wait for
    others, are ready but not started, run, or have failed. ``schedule_count`` schedules have an
    instant to come, ``late_schedule_count`` of them one that was due more than 5 s ago; others are
    paused.
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

    @property
    def worker_age(self) -> dt.timedelta | None:
        """How long the oldest has waited for nothing but a worker; None: none does."""
        ages = [age for age in (self.due_age, self.available_age) if age is not None]
        return max(ages, default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the replicas do and what waits, at ``read_at`` by PostgreSQL's clock.

    ``queues_age`` is how long ago the queues were counted; None: they could not be, and there are
    none. ``uncounted_namespace_count`` are namespaces whose queues are left out. Numbers of queues
    less than ``exact_below`` are exact, the others may be of more.
    """

    read_at: dt.datetime
    replicas: tuple[ReplicaActivity, ...]
    queues: tuple[NamespaceQueue, ...]
    queues_age: dt.timedelta | None
    uncounted_namespace_count: int
    exact_below: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRate:
    """What is done in a second; rates of different replicas or namespaces can be added."""

    settled_per_second: float = 0.0
    attempts_per_second: float = 0.0
    failed_per_second: float = 0.0
    processor_seconds_per_second: float = 0.0

    @property
    def mean_processor_time(self) -> dt.timedelta | None:
        """What an attempt took the processor on average; None: there was none."""
        if not self.attempts_per_second:
            return None
        return dt.timedelta(seconds=self.processor_seconds_per_second / self.attempts_per_second)

    def __add__(self, other: "StepRate") -> "StepRate":
        """Return both together."""
        return StepRate(
            settled_per_second=self.settled_per_second + other.settled_per_second,
            attempts_per_second=self.attempts_per_second + other.attempts_per_second,
            failed_per_second=self.failed_per_second + other.failed_per_second,
            processor_seconds_per_second=(
                self.processor_seconds_per_second + other.processor_seconds_per_second
            ),
        )


Rates: TypeAlias = Mapping[int, Mapping[str, StepRate]]
"""By the replica's id and by namespace; a replica of which none are known is not there."""


def rates_between(before: Activity, after: Activity, *, known: Rates | None = None) -> Rates:
    """Return what each replica did in a second, between its heartbeats in two answers.

    Nothing is known of a replica that is in one of them only, nor of one without a heartbeat in
    between: for that one holds what was `known`, until it is silent. No rate is negative.

    Args:
        before: What was told first.
        after: What was told later.
        known: The rates until `before`.
    """
    then = {replica.replica_id: replica for replica in before.replicas}
    found: dict[int, Mapping[str, StepRate]] = {}
    for replica in after.replicas:
        former = then.get(replica.replica_id)
        if former is None or replica.state is ReplicaState.SILENT:
            continue
        if replica.heartbeat_at > former.heartbeat_at:
            found[replica.replica_id] = _rates_of(former, replica)
        elif replica.replica_id in (known or {}):
            found[replica.replica_id] = (known or {})[replica.replica_id]
    return found


def rates_by_namespace(rates: Rates) -> Mapping[str, StepRate]:
    """Return what all replicas together do in each namespace."""
    found: dict[str, StepRate] = {}
    for of_replica in rates.values():
        for name, rate in of_replica.items():
            found[name] = found.get(name, StepRate()) + rate
    return found


def _rates_of(before: ReplicaActivity, after: ReplicaActivity) -> Mapping[str, StepRate]:
    seconds = (after.heartbeat_at - before.heartbeat_at).total_seconds()
    # Where all was told, what was not told had not been used.
    unused = None if before.is_partial else StepTally()
    then = {it.namespace: it.tally for it in before.namespaces}
    found = {}
    for namespace in after.namespaces:
        former, tally = then.get(namespace.namespace, unused), namespace.tally
        if former is not None and tally is not None:
            found[namespace.namespace] = _rate(former, tally, seconds)
    return found


def _rate(before: StepTally, after: StepTally, seconds: float) -> StepRate:
    spent = after.processor_time - before.processor_time
    return StepRate(
        settled_per_second=_per(after.settled_count - before.settled_count, seconds),
        attempts_per_second=_per(after.attempt_count - before.attempt_count, seconds),
        failed_per_second=_per(after.failed_count - before.failed_count, seconds),
        processor_seconds_per_second=_per(spent.total_seconds(), seconds),
    )


def _per(difference: float, seconds: float) -> float:
    return max(0.0, difference / seconds)


activity_from_wire = Shape(Activity, pb.GetActivityResponse).read
