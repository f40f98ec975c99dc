"""An overview of an engine, by namespace and by replica."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from progressor.domain.views.activity import NamespaceQueue
from progressor.sdk.client.replicas import (
    Activity,
    NamespaceActivity,
    Rates,
    ReplicaState,
    StepRate,
    rates_between,
    rates_by_namespace,
)

_NO_TIME = dt.timedelta()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Rates, and the mean time of an attempt at the processor.

    None if a rate is not known yet, or without an attempt.
    """

    settled_per_second: float | None = None
    attempts_per_second: float | None = None
    failed_per_second: float | None = None
    mean_processor_time: dt.timedelta | None = None

    @classmethod
    def of(cls, rates: Iterable[StepRate] | None) -> "Pace":
        """Return the sum of rates as a pace; None: no rate is known."""
        if rates is None:
            return cls()
        rate = sum(rates, StepRate())
        return cls(**{field.name: getattr(rate, field.name) for field in dataclasses.fields(cls)})


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
    """A replica, as its last heartbeat reported, with its pace."""

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

    ``queue`` has the sums of the counts, and the greatest ages; None if the queues could not be
    counted.
    """

    pace: Pace
    busy_count: int
    worker_count: int
    caller_count: int
    serving_count: int
    draining_count: int
    silent_count: int
    queue: NamespaceQueue | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The activity at ``read_at``, by PostgreSQL's clock.

    ``namespaces`` are sorted by the age of their oldest due task, then by their rates.
    ``queues_age`` is how long ago the queues were counted; None if they could not be. Counts are
    exact below ``exact_below``. What is in ``unavailable_cells`` is missing.
    """

    read_at: dt.datetime
    totals: Totals
    namespaces: tuple[NamespaceLine, ...]
    replicas: tuple[ReplicaLine, ...]
    queues_age: dt.timedelta | None
    uncounted_namespace_count: int
    exact_below: int
    unavailable_cells: tuple[str, ...]

    @property
    def slowest(self) -> list[NamespaceLine]:
        """The namespaces whose processor is unreachable or was called, the worst first."""
        slowness = {
            it.namespace: (it.unreachable_for or _NO_TIME, it.pace.mean_processor_time or _NO_TIME)
            for it in self.namespaces
            if it.unreachable_for is not None or it.pace.mean_processor_time is not None
        }
        found = [it for it in self.namespaces if it.namespace in slowness]
        return sorted(found, key=lambda it: slowness[it.namespace], reverse=True)


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
        return self._last is not None and all(
            it.replica_id in self._rates
            for it in self._last.replicas
            if it.state is ReplicaState.SERVING
        )


def overview_of(activity: Activity, rates: Rates) -> Overview:
    """Return the overview of an activity; without rates, its pace is unknown."""
    living = [it for it in activity.replicas if it.state is not ReplicaState.SILENT]
    states = [it.state for it in activity.replicas]
    by_namespace = rates_by_namespace(rates)
    activities: dict[str, list[NamespaceActivity]] = {}
    for replica in living:
        for each in replica.namespaces:
            activities.setdefault(each.namespace, []).append(each)
    queues = {queue.namespace: queue for queue in activity.queues}
    lines = [
        NamespaceLine(
            namespace=name,
            pace=Pace.of([by_namespace.get(name, StepRate())] if rates else None),
            busy_count=sum(it.busy_count for it in activities.get(name, ())),
            worker_count=sum(it.worker_count for it in activities.get(name, ())),
            unreachable_for=_greatest(it.unreachable_for for it in activities.get(name, ())),
            queue=queues.get(name),
        )
        for name in activities.keys() | queues.keys()
    ]
    replica_fields = {field.name for field in dataclasses.fields(ReplicaLine)} - {"pace"}
    return Overview(
        read_at=activity.read_at,
        totals=Totals(
            pace=Pace.of(by_namespace.values() if rates else None),
            busy_count=sum(it.busy_count for it in lines),
            worker_count=sum(it.worker_count for it in lines),
            caller_count=sum(it.caller_count or 0 for it in living),
            serving_count=states.count(ReplicaState.SERVING),
            draining_count=states.count(ReplicaState.DRAINING),
            silent_count=states.count(ReplicaState.SILENT),
            queue=None if activity.queues_age is None else _sum(activity.queues),
        ),
        namespaces=tuple(sorted(lines, key=_urgency)),
        replicas=tuple(
            ReplicaLine(
                **{name: getattr(it, name) for name in replica_fields},
                pace=Pace.of(rates[it.replica_id].values() if it.replica_id in rates else None),
            )
            for it in activity.replicas
        ),
        queues_age=activity.queues_age,
        uncounted_namespace_count=activity.uncounted_namespace_count,
        exact_below=activity.exact_below,
        unavailable_cells=activity.unavailable_cells,
    )


def _sum(queues: Sequence[NamespaceQueue]) -> NamespaceQueue:
    fields: dict[str, Any] = {"namespace": ""}
    for field in dataclasses.fields(NamespaceQueue):
        values = [getattr(queue, field.name) for queue in queues]
        if field.name.endswith("_count"):
            fields[field.name] = sum(values)
        elif field.name.endswith("_age"):
            fields[field.name] = _greatest(values)
        elif field.name.endswith("_is_estimate"):
            fields[field.name] = any(values)
    return NamespaceQueue(**fields)


def _greatest(ages: Iterable[dt.timedelta | None]) -> dt.timedelta | None:
    return max((age for age in ages if age is not None), default=None)


def _urgency(line: NamespaceLine) -> tuple[dt.timedelta, float, str]:
    age = None if line.queue is None else line.queue.worker_age
    return -(age or _NO_TIME), -(line.pace.settled_per_second or 0.0), line.namespace
