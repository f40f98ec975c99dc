"""An overview of an engine, by namespace and by replica."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from progressor.sdk.values.activity import (
    Activity,
    NamespaceActivity,
    NamespaceQueue,
    Rates,
    ReplicaActivity,
    StepRate,
    rates_between,
    rates_by_namespace,
)
from progressor.sdk.values.replicas import ReplicaState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NO_TIME = dt.timedelta()
_UNUSED = StepRate()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rates, and the mean time of an attempt at the processor.

    None if a rate is not known yet, or without an attempt.
    """

    settled_per_second: float | None = None
    attempts_per_second: float | None = None
    failed_per_second: float | None = None
    mean_processor_time: dt.timedelta | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLine:
    """A namespace, with the workers of all live replicas.

    ``unreachable_for`` is the longest time for which a replica has not reached the processor.
    ``queue`` is None if it was not counted.
    """

    namespace: str
    pace: Pace
    busy_count: int
    worker_count: int
    unreachable_for: dt.timedelta | None
    queue: NamespaceQueue | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLine:
    """A replica, in one line."""

    replica_id: int
    name: str
    version: str
    state: ReplicaState
    heartbeat_age: dt.timedelta
    step_count: int | None
    caller_count: int | None
    pace: Pace


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of all namespaces and replicas.

    ``due_age`` is that of the oldest task that only needs a worker, due or available, and
    ``gate_age`` that of the oldest task in the queue of a gate; None without one. The counts of
    waiting tasks are None if the queues were not counted.
    """

    pace: Pace
    busy_count: int
    worker_count: int
    caller_count: int
    serving_count: int
    draining_count: int
    silent_count: int
    due_count: int | None
    due_age: dt.timedelta | None
    timer_count: int | None
    retry_count: int | None
    behind_count: int | None
    run_at_count: int | None
    order_count: int | None
    gate_count: int | None
    gate_age: dt.timedelta | None
    available_count: int | None
    held_count: int | None
    full_gate_count: int | None
    job_count: int | None
    waiting_node_count: int | None
    ready_node_count: int | None
    running_node_count: int | None
    failed_node_count: int | None
    schedule_count: int | None
    paused_schedule_count: int | None
    late_schedule_count: int | None

    @property
    def has_constraints(self) -> bool:
        """Whether a task waits for its constraints, is available, or holds a gate."""
        waiting = (self.run_at_count, self.order_count, self.gate_count)
        return any((*waiting, self.available_count, self.held_count))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The activity at ``read_at``, by PostgreSQL's clock.

    ``namespaces`` are sorted by the age of their oldest due task, then by their rates.
    ``queues_age`` is how long ago the queues were counted; None if they could not be. Counts are
    exact below ``exact_below``.
    """

    read_at: dt.datetime
    totals: Totals
    namespaces: tuple[NamespaceLine, ...]
    replicas: tuple[ReplicaLine, ...]
    queues_age: dt.timedelta | None
    uncounted_namespace_count: int
    exact_below: int

    @property
    def slowest(self) -> tuple[NamespaceLine, ...]:
        """The namespaces whose processor is unreachable or was called, the worst first."""
        found = (
            it
            for it in self.namespaces
            if it.unreachable_for is not None or it.pace.mean_processor_time is not None
        )
        return tuple(sorted(found, key=_slowness, reverse=True))


class Meter:
    """Makes an overview of each activity, with the rates since the previous one."""

    def __init__(self) -> None:
        self._last: Activity | None = None
        self._rates: Rates = {}

    def read(self, activity: Activity) -> Overview:
        """Return the overview of an activity, which must be later than the previous one."""
        if self._last is not None:
            self._rates = rates_between(self._last, activity, known=self._rates)
        self._last = activity
        return overview_of(activity, self._rates)

    @property
    def is_ready(self) -> bool:
        """Whether the rates of all serving replicas are known."""
        serving = [
            it.replica_id
            for it in (self._last.replicas if self._last is not None else ())
            if it.state is ReplicaState.SERVING
        ]
        return self._last is not None and all(it in self._rates for it in serving)


def overview_of(activity: Activity, rates: Rates) -> Overview:
    """Return the overview of an activity; without rates, its pace is unknown."""
    living = [it for it in activity.replicas if it.state is not ReplicaState.SILENT]
    lines = _namespaces(activity, living, rates)
    return Overview(
        read_at=activity.read_at,
        totals=_totals(activity, living, lines, rates),
        namespaces=tuple(sorted(lines, key=_urgency)),
        replicas=tuple(_replica(it, rates) for it in activity.replicas),
        queues_age=activity.queues_age,
        uncounted_namespace_count=activity.uncounted_namespace_count,
        exact_below=activity.exact_below,
    )


def _namespaces(
    activity: Activity, living: Sequence[ReplicaActivity], rates: Rates
) -> list[NamespaceLine]:
    activities: dict[str, list[NamespaceActivity]] = {}
    for replica in living:
        for each in replica.namespaces:
            activities.setdefault(each.namespace, []).append(each)
    queues = {queue.namespace: queue for queue in activity.queues}
    by_namespace = rates_by_namespace(rates)
    return [
        _namespace(
            name,
            activities.get(name, ()),
            queues.get(name),
            by_namespace.get(name, _UNUSED) if rates else None,
        )
        for name in activities.keys() | queues.keys()
    ]


def _namespace(
    name: str,
    activities: Sequence[NamespaceActivity],
    queue: NamespaceQueue | None,
    rate: StepRate | None,
) -> NamespaceLine:
    unreachable = [it.unreachable_for for it in activities if it.unreachable_for is not None]
    return NamespaceLine(
        namespace=name,
        pace=_pace(rate),
        busy_count=sum(it.busy_count for it in activities),
        worker_count=sum(it.worker_count for it in activities),
        unreachable_for=max(unreachable, default=None),
        queue=queue,
    )


def _replica(replica: ReplicaActivity, rates: Rates) -> ReplicaLine:
    own = rates.get(replica.replica_id)
    fields = {it: getattr(replica, it) for it in _names(ReplicaLine) - {"pace"}}
    return ReplicaLine(**fields, pace=_pace(None if own is None else _sum(own.values())))


def _totals(
    activity: Activity,
    living: Sequence[ReplicaActivity],
    lines: Sequence[NamespaceLine],
    rates: Rates,
) -> Totals:
    states = [it.state for it in activity.replicas]
    queues = None if activity.queues_age is None else activity.queues
    return Totals(
        pace=_pace(_sum(rates_by_namespace(rates).values()) if rates else None),
        busy_count=sum(it.busy_count for it in lines),
        worker_count=sum(it.worker_count for it in lines),
        caller_count=sum(it.caller_count or 0 for it in living),
        serving_count=states.count(ReplicaState.SERVING),
        draining_count=states.count(ReplicaState.DRAINING),
        silent_count=states.count(ReplicaState.SILENT),
        due_age=_oldest(it.worker_age for it in queues or ()),
        gate_age=_oldest(it.gate_age for it in queues or ()),
        **_counts(queues),
    )


def _counts(queues: Sequence[NamespaceQueue] | None) -> Mapping[str, int | None]:
    """Return the totals of the counts that each queue has; None if they were not counted."""
    names = {it for it in _names(Totals) & _names(NamespaceQueue) if it.endswith("_count")}
    if queues is None:
        return dict.fromkeys(names)
    return {name: sum(getattr(queue, name) for queue in queues) for name in names}


def _names(table: "type[DataclassInstance]") -> set[str]:
    return {field.name for field in dataclasses.fields(table)}


def _oldest(ages: Iterable[dt.timedelta | None]) -> dt.timedelta | None:
    return max((age for age in ages if age is not None), default=None)


def _pace(rate: StepRate | None) -> Pace:
    return Pace() if rate is None else Pace(**{it: getattr(rate, it) for it in _names(Pace)})


def _sum(rates: Iterable[StepRate]) -> StepRate:
    return sum(rates, _UNUSED)


def _urgency(line: NamespaceLine) -> tuple[dt.timedelta, float, str]:
    """Return the sort key of a namespace: its oldest due task first, then its rate."""
    age = None if line.queue is None else line.queue.worker_age
    return -(age or _NO_TIME), -(line.pace.settled_per_second or 0.0), line.namespace


def _slowness(line: NamespaceLine) -> tuple[dt.timedelta, dt.timedelta]:
    return line.unreachable_for or _NO_TIME, line.pace.mean_processor_time or _NO_TIME
