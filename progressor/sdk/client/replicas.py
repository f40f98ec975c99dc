"""``client.replicas``: the replicas that share the engine's database, and what they do."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TypeAlias

from progressor.domain.views.activity import NamespaceQueue
from progressor.domain.views.replica import StepTally
from progressor.sdk.client.resource import Resource, blocking, iterated, sent
from progressor.sdk.codec.wire import Seconds, WireEnum, duration_to_wire
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing
from progressor.v1 import replica_service_pb2 as pb
from progressor.wire.shapes import Shape


class ReplicaState(WireEnum):
    """The state of a replica as others see it. UNSPECIFIED: one that only a newer SDK knows.

    SILENT: presumed dead, since its heartbeat is older than its lease timeout.
    """

    UNSPECIFIED = "unspecified"
    SERVING = "serving"
    DRAINING = "draining"
    SILENT = "silent"


class LogLevel(WireEnum):
    """The lowest level that is logged. UNSPECIFIED: one that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogLevelChange:
    """The replica whose log level was set, and its level before."""

    replica_name: str
    previous_level: LogLevel


class FindingState(WireEnum):
    """How a check of the doctor came out. UNSPECIFIED: in a way that only a newer SDK knows."""

    UNSPECIFIED = "unspecified"
    OK = "ok"
    NOT_DONE = "not_done"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """What one check says, in a sentence; ``offenders`` are the first ten of what it counts.

    ``advice``: what to do about it; "": all is well. ``cell`` is as in `Replica`.
    """

    group: str
    check: str
    state: FindingState
    words: str
    advice: str
    offenders: tuple[str, ...]
    cell: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The findings of the quick checks, and when these ended, by the replica's clock."""

    examined_at: dt.datetime
    findings: tuple[DoctorFinding, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """An engine process; instants and ages are by PostgreSQL's clock.

    ``functions`` is the schema with the functions of its release. ``step_count`` (running steps),
    ``caller_count`` (waiting callers) and ``clock_offset`` (how far its clock is ahead of
    PostgreSQL's) are those of its last heartbeat; None: its release does not report them, or the
    clocks have not been compared yet. ``lease_count`` is current. ``cell``: a replica has an id in
    each cell that it serves; "": there is only one.
    """

    replica_id: int
    name: str
    version: str
    state: ReplicaState
    functions: str
    started_at: dt.datetime
    heartbeat_at: dt.datetime
    heartbeat_age: dt.timedelta
    lease_timeout: dt.timedelta
    draining: bool
    step_count: int | None
    caller_count: int | None
    clock_offset: dt.timedelta | None
    lease_count: int
    cell: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceActivity:
    """A namespace in one replica: how many of its workers are busy.

    ``unreachable_for``: how long its processor has been unreachable; None: it was reached, or not
    tried. ``tally`` is None if the replica's release does not report it.
    """

    namespace: str
    busy_count: int
    worker_count: int
    unreachable_for: dt.timedelta | None
    tally: StepTally | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaActivity:
    """A replica, as its last heartbeat reported.

    ``step_count`` and ``caller_count`` are None if its release does not report them. A namespace
    that is not in ``namespaces`` has had no step there, unless ``is_partial``. ``cell`` is as in
    `Replica`.
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
    cell: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the replicas do and what waits, at ``read_at`` by PostgreSQL's clock.

    ``queues_age``: how long ago the queues were counted; None: counting failed, and ``queues`` is
    empty. ``uncounted_namespace_count``: namespaces whose queues are left out. A count in a queue
    is exact if it is less than ``exact_below``, otherwise a minimum. Replicas and queues of
    ``unavailable_cells`` are missing.
    """

    read_at: dt.datetime
    replicas: tuple[ReplicaActivity, ...]
    queues: tuple[NamespaceQueue, ...]
    queues_age: dt.timedelta | None
    uncounted_namespace_count: int
    exact_below: int
    unavailable_cells: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRate:
    """Work per second; the rates of different replicas or namespaces can be added."""

    settled_per_second: float = 0.0
    attempts_per_second: float = 0.0
    failed_per_second: float = 0.0
    processor_seconds_per_second: float = 0.0

    @property
    def mean_processor_time(self) -> dt.timedelta | None:
        """The average time of an attempt in the processor; None: without attempts."""
        if not self.attempts_per_second:
            return None
        return dt.timedelta(seconds=self.processor_seconds_per_second / self.attempts_per_second)

    def __add__(self, other: "StepRate") -> "StepRate":
        """Return the sum of both rates."""
        names = (it.name for it in dataclasses.fields(self))
        return StepRate(**{it: getattr(self, it) + getattr(other, it) for it in names})


Rates: TypeAlias = Mapping[int, Mapping[str, StepRate]]
"""Step rates by the id of the replica and by namespace; a replica without known rates is absent."""


def rates_between(before: Activity, after: Activity, *, known: Rates | None = None) -> Rates:
    """Return the work per second of each replica between its heartbeats in two activities.

    A replica that is in only one of them has no rates. One without a heartbeat in between keeps the
    rates in `known` until it is silent. No rate is negative.

    Args:
        before: The earlier activity.
        after: The later activity.
        known: The rates before `before`.
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
    """Return the rates of each namespace, over all replicas."""
    found: dict[str, StepRate] = {}
    for of_replica in rates.values():
        for name, rate in of_replica.items():
            found[name] = found.get(name, StepRate()) + rate
    return found


read_replica = Shape(Replica, pb.Replica).read
read_change = Shape(LogLevelChange, pb.SetLogLevelResponse).read
read_report = Shape(DoctorReport, pb.RunDoctorResponse).read
read_activity = Shape(Activity, pb.GetActivityResponse).read


class Replicas(Resource[Connection]):
    """The requests about replicas; `timeout` is in seconds or a timedelta, None: the client's."""

    @iterated
    def list(self, *, page_size: int = 100, timeout: Seconds | None = None) -> Listing[Replica]:
        """Iterate over the replicas on the engine's database, the first started first.

        A dead replica is listed for another hour. `timeout` applies to each page.
        """
        request = pb.ListReplicasRequest(page_size=page_size)
        return Listing(request, lambda message: map(read_replica, message.replicas), timeout)

    @sent
    def activity(self, *, timeout: Seconds | None = None) -> Exchange[Activity]:
        """Return what the replicas on the engine's database do, and what waits.

        `rates_between` two activities gives rates. The request is cheap enough for polling.
        """
        request = pb.GetActivityRequest()
        return Exchange(request, read_activity, timeout, repeatable=True)

    @sent
    def set_log_level(
        self, level: LogLevel, *, lasting: Seconds = 0, timeout: Seconds | None = None
    ) -> Exchange[LogLevelChange]:
        """Set the log level of the replica that receives the request, and of no other.

        After `lasting`, in seconds or a timedelta, the replica goes back to the level that was last
        set without an end, or to the configured one. 0: until it is set again.
        """
        request = pb.SetLogLevelRequest(level=level.number, lasting=duration_to_wire(lasting))
        # A repeat would return the requested level as the previous one.
        return Exchange(request, read_change, timeout)

    @sent
    def run_doctor(self, *, timeout: Seconds | None = None) -> Exchange[DoctorReport]:
        """Return what the quick checks of `progressor doctor` find in the engine's database.

        A run takes up to a minute; its findings are those of the next requests for 15 s.
        """
        return Exchange(pb.RunDoctorRequest(), read_report, timeout, repeatable=True)


class SyncReplicas(Resource[BlockingConnection]):
    """`Replicas` for programs without an event loop: blocking, safe in any thread."""

    list = blocking(Replicas.list)
    activity = blocking(Replicas.activity)
    set_log_level = blocking(Replicas.set_log_level)
    run_doctor = blocking(Replicas.run_doctor)


def _rates_of(before: ReplicaActivity, after: ReplicaActivity) -> Mapping[str, StepRate]:
    seconds = (after.heartbeat_at - before.heartbeat_at).total_seconds()
    # In a complete report, an absent namespace has not been used.
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
